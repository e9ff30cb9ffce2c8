// Package agent is the daemon that watches a machine: it notices what happens to jobs, has what dead
// processes hold returned to their jobs at once, keeps a short history, and answers questions over a
// socket.
//
// It is never in the way of a job. It takes no lock of a job and maps no region; package machine reads them,
// with deadlines, and each user's jobs apart from the others'. What has to be written, the return of what
// dead processes hold, a process of the region's own user does. All that matters is in the regions: an agent
// that is killed loses its history, and the next one reads the events that are still known from there.
//
// What makes it scan:
//
//	inotify    something is made, removed, opened or closed in a folder of jobs, or in a job's own:
//	           jobs start and end, processes join
//	pidfd      a process of a job has ended
//	a second   has passed: regions change without any sign from the kernel
//	deferred   a job is due that was read a moment before, or a process was about to end
//
// After a second it scans all jobs, otherwise those with a hint. An idle job costs a scan one read and one
// question for each of its locks.
package agent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"ration/internal/feed"
	"ration/internal/job"
	"ration/internal/metrics"
	"ration/internal/node"
	"ration/internal/scan"
	"ration/machine"
)

const (
	// Interval is how often the agent scans all jobs.
	Interval = time.Second
	// It scans once in gap if something happens all the time, and rests for as long as a scan took. After
	// a quiet moment it scans at once, maxLooks times.
	gap      = 20 * time.Millisecond
	maxLooks = 4
)

// Options say how an agent runs.
type Options struct {
	Folder     string // of its journal; empty for none, as an agent without a log must keep none
	Listen     string // address at which metrics are served; empty for none
	JobMetrics bool   // also with those of each job
	Version    string
	Log        *slog.Logger
	Interval   time.Duration // Interval if 0
	// Reap returns what dead processes hold to the jobs with those regions, by a process of that user, and
	// waits for it. nil: nothing is returned.
	Reap func(ctx context.Context, paths []string, uid int) error
}

// Agent is a running agent.
type Agent struct {
	opts    Options
	scanner node.Scanner
	watcher *watcher
	pids    *pidWatch
	reaper  *reaper
	history *history
	events  *eventRing
	feed    *feed.Feed // of snapshots, with their events

	// Used by the loop only.
	log      eventLog
	journal  *journal
	unsaved  bool             // the journal could not be saved the last time
	deferred <-chan time.Time // when deferred jobs are due; nil for never

	wake     chan struct{} // something has happened
	looked   chan struct{} // closed after the first scan
	all      atomic.Bool   // the next scan is of all jobs, and not only of those with hints
	snapshot atomic.Pointer[snapshot]

	mu    sync.Mutex
	stats metrics.Agent // under mu
}

// New returns an agent that has not scanned yet.
func New(opts Options) (*Agent, error) {
	a := &Agent{opts: opts, history: newHistory(), events: newEventRing(), feed: feed.New(),
		wake: make(chan struct{}, 1), looked: make(chan struct{}), log: eventLog{log: opts.Log, own: job.User(), lines: map[int]*logLines{}}}
	a.stats.Events = map[string]uint64{}
	for _, kind := range machine.EventKinds {
		a.stats.Events[kind] = 0
	}
	a.scanner = node.NewScanner(scan.Options{Background: true, Wake: a.Wake})
	hint := func(folder string) {
		if folder != "" {
			a.scanner.Hint(folder)
		}
		a.lookSoon()
	}
	var err error
	if a.watcher, err = newWatcher(hint); err != nil {
		return nil, err
	}
	ended := func(folder string) {
		a.reaper.hasEnded(folder)
		hint(folder)
	}
	if a.pids, err = newPIDWatch(ended); err != nil {
		a.watcher.close()
		return nil, err
	}
	if a.journal, err = openJournal(opts.Folder); err != nil {
		opts.Log.Warn("events that were logged before may be logged again", "error", err)
	}
	a.reaper = newReaper(opts.Reap, hint, opts.Log)
	a.snapshot.Store(&snapshot{})
	return a, nil
}

// Wake makes the agent scan all jobs soon.
func (a *Agent) Wake() {
	a.all.Store(true)
	a.lookSoon()
}

// lookSoon makes the agent scan soon.
func (a *Agent) lookSoon() {
	select {
	case a.wake <- struct{}{}:
	default: // it will already
	}
}

// Run scans until the context ends. It calls ready after the first scan.
func (a *Agent) Run(ctx context.Context, ready func()) error {
	defer a.close()
	go a.watcher.run()
	go a.pids.run()
	timer := time.NewTicker(cmp.Or(a.opts.Interval, Interval))
	defer timer.Stop()
	var failed error
	first := true
	looks := rate.NewLimiter(rate.Every(gap), maxLooks)
	a.all.Store(true)
	for {
		began := time.Now()
		if err := a.look(); err != nil && (failed == nil || failed.Error() != err.Error()) {
			a.opts.Log.Error("the jobs could not be listed", "error", err)
			failed = err
		} else if err == nil {
			failed = nil
		}
		if first {
			first = false
			close(a.looked)
			if ready != nil {
				ready()
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(looks.ReserveN(began, 1).DelayFrom(time.Now()), time.Since(began))):
		}
		select {
		case <-ctx.Done():
			return nil
		case <-a.wake:
		case <-a.deferred:
		case <-timer.C:
			a.all.Store(true)
		}
	}
}

func (a *Agent) close() {
	a.watcher.close()
	a.pids.close()
	a.reaper.close()
	a.scanner.Close()
	a.log.end()
	a.journal.close()
}

// look scans the machine once.
func (a *Agent) look() error {
	began := time.Now()
	r, err := a.scanner.Scan(a.all.Swap(false))
	if err != nil {
		return err
	}
	if a.deferred = nil; !a.scanner.Deferred().IsZero() {
		a.deferred = time.After(time.Until(a.scanner.Deferred()))
	}
	a.reaper.reap(r.Machine.Jobs) // first, as it takes longest: the rest is done meanwhile
	if r.Changed {
		a.watcher.set(a.scanner.Folders())
		a.pids.set(r.Machine.Jobs)
		a.snapshot.Store(newSnapshot(*r.Machine, a.snapshot.Load()))
	}
	fresh := a.events.add(append(r.Events, a.journal.ends(r.Machine, began)...))
	if r.Changed || len(fresh) > 0 {
		a.feed.Advance() // now followers find both
	}
	a.record(fresh)
	a.history.add(a.Machine(), began)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stats.Looks++
	a.stats.LookSeconds, a.stats.Looked = time.Since(began).Seconds(), began.UnixNano()
	return nil
}

// Machine returns the machine as of the latest scan. Do not change it.
func (a *Agent) Machine() *machine.Machine { return &a.snapshot.Load().Machine }

// Stats returns the agent's own metrics.
func (a *Agent) Stats() metrics.Agent {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := a.stats
	out.Events = map[string]uint64{}
	for kind, n := range a.stats.Events {
		out.Events[kind] = n
	}
	return out
}

// ErrRunning is returned if another agent serves the folder.
var ErrRunning = errors.New("an agent is running already")
