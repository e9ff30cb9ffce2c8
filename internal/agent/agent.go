// Package agent is the daemon that watches a machine: it notices what happens to jobs, has the
// dead returned to their jobs at once, keeps a short history, and answers questions over a
// socket.
//
// It is never in the way of a job. It takes no lock of a job's and maps no region; it reads them
// as package machine does, with deadlines, each user's beside the others'. What has to be written,
// the return of what the dead hold, is done by a process of the region's own user. All that
// matters is in the regions: an agent that is killed loses its history, and the next one reads
// the events that are still known from there.
//
// What makes it look:
//
//	inotify    something is made, removed, opened or closed in a folder of jobs, or a job's own:
//	           jobs begin and end, processes join
//	pidfd      a process of a job has ended
//	a second   has passed: regions change without any sign that the kernel could give
//	again      a job is due that was put off, or may have lost a process that was about to end
//
// The clock makes it look at all jobs, anything else at those of which there was a sign. An idle job
// costs a look one read and one question for each of its locks.
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

	"ration/internal/epoch"
	"ration/internal/job"
	"ration/internal/metrics"
	"ration/internal/node"
	"ration/internal/scan"
	"ration/machine"
)

const (
	// Interval is how often the agent looks when nothing makes it.
	Interval = time.Second
	// It looks once in gap where something happens all the time, and rests for as long as a look took:
	// what happens meanwhile is of the next. After a quiet moment it looks at once, maxLooks times.
	gap      = 20 * time.Millisecond
	maxLooks = 4
)

// Options say how an agent runs.
type Options struct {
	Folder     string // in which it remembers what it has told; empty: nowhere, as one without a log must not
	Listen     string // address at which metrics are served; empty for none
	JobMetrics bool   // also with those of each job
	Version    string
	Log        *slog.Logger
	Interval   time.Duration // how often to look when nothing makes it
	// Reap returns what dead processes of the jobs with those regions hold, as a process of that
	// user's. It returns when that has been done, or could not be.
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
	changes *changes
	log     eventLog         // of the loop
	told    *told            // of the loop
	unsaved bool             // of the loop: what was told last could not be remembered
	again   <-chan time.Time // of the loop: when what was put off is due; nil for never

	wake    chan struct{} // something has happened
	looked  chan struct{} // closed after the first look
	all     atomic.Bool   // the next look is at all jobs, and not only at those that were hinted at
	picture atomic.Pointer[picture]
	epoch   epoch.Epoch // of the serials of its pictures

	mu    sync.Mutex
	stats metrics.Agent // under mu
}

// New returns an agent that has not looked yet.
func New(opts Options) (*Agent, error) {
	a := &Agent{opts: opts, history: newHistory(), events: newEventRing(), changes: newChanges(), epoch: epoch.New(),
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
	if a.told, err = openTold(opts.Folder); err != nil {
		opts.Log.Warn("events that were logged before may be logged again", "error", err)
	}
	a.reaper = newReaper(opts.Reap, hint, opts.Log)
	a.picture.Store(&picture{})
	return a, nil
}

// Wake makes the agent look at all jobs soon.
func (a *Agent) Wake() {
	a.all.Store(true)
	a.lookSoon()
}

// lookSoon makes the agent look soon where something was hinted at.
func (a *Agent) lookSoon() {
	select {
	case a.wake <- struct{}{}:
	default: // it will already
	}
}

// Run looks until the context ends. ready is called after the first look.
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
		case <-a.again:
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
	a.told.close()
}

// look looks at the machine once.
func (a *Agent) look() error {
	began := time.Now()
	r, err := a.scanner.Scan(a.all.Swap(false))
	if err != nil {
		return err
	}
	a.setAgain(a.scanner.Deferred())
	a.reaper.reap(r.Machine.Jobs) // first, as it takes longest: the rest is done meanwhile
	if r.Changed {
		a.watcher.set(a.scanner.Folders())
		a.pids.set(r.Machine.Jobs)
		a.picture.Store(newPicture(*r.Machine, a.picture.Load()))
		a.changes.tell()
	}
	happened := append(r.Events, a.told.ends(r.Machine, began)...)
	a.note(happened) // who hears of them finds them in the picture
	a.history.add(a.Machine(), began)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stats.Looks++
	a.stats.LookSeconds, a.stats.Looked = time.Since(began).Seconds(), began.UnixNano()
	return nil
}

// setAgain sets when to look whatever happens; the zero time is never.
func (a *Agent) setAgain(at time.Time) {
	if a.again = nil; !at.IsZero() {
		a.again = time.After(time.Until(at))
	}
}

// Machine returns the machine as it was at the latest look. It must not be changed.
func (a *Agent) Machine() *machine.Machine { return &a.picture.Load().Machine }

// Stats returns what the agent says of itself.
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

// ErrRunning is returned where another agent serves the folder.
var ErrRunning = errors.New("an agent is running already")
