// Package agent is the daemon that watches a machine. It notices what happens to jobs, lets the
// memory of dead processes be returned to their jobs at once, keeps a short history, and answers
// requests on a socket.
//
// The agent never delays a job. It takes no lock of a job and maps no region: package machine reads
// the regions, with timeouts, and reads each user's jobs separately. Returning memory needs a
// write; a process of the job's own user does it (ration reap). All lasting state is in the
// regions. An agent that is killed loses its history, and the next agent reads the recent events
// from the regions again.
//
// These make the agent scan:
//
//	inotify    a file was made, removed, opened or closed in a folder of jobs or in a job's folder:
//	           a job started or ended, or a process joined
//	pidfd      a process of a job ended
//	timer      a second has passed; the kernel does not report a change of a region's memory
//	deferred   a job is due that the last scan left out, because it had just been read or because
//	           a process of it was about to end
//
// The timer makes it scan all jobs. Otherwise it scans the jobs with a hint. An idle job costs a
// scan one read, and one query for each of its locks.
package agent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"ration/internal/agent/privsep"
	"ration/internal/connlimit"
	"ration/internal/fleet"
	"ration/internal/job"
	"ration/internal/metrics"
	"ration/internal/node"
	"ration/machine"
)

const (
	// Interval is how often the agent scans all jobs.
	Interval = time.Second
	// gap is the shortest time between two scans when events never stop; a pause is also at least
	// as long as the scan before it took. After a quiet moment maxScans scans may follow each other
	// without a pause.
	gap      = 20 * time.Millisecond
	maxScans = 4
	// After the accounts have looked at all jobs, they do not look again for lookRest times as long as that took. With
	// thousands of jobs of one user a look takes longer than a scan, and scans find the changes of all users. The rest is
	// bounded: looks that are more than 15 s apart do not count what was held between them.
	lookRest    = 10
	maxLookRest = 5 * time.Second
)

// lastWrite is how long an agent that ends waits for its accounts to be written: users can keep the disk busy. Tests
// set it.
var lastWrite = 3 * time.Second

// Options are the settings of an agent.
type Options struct {
	Folder     string        // folder of the journal; empty to keep no journal (an agent without a log must not have one)
	Usage      string        // file of the accounts of usage; empty to keep none
	IdleAfter  time.Duration // how long a job holds memory and does nothing before it is idle; 0 for never
	Listen     string        // address that serves metrics; empty for no metrics
	JobMetrics bool          // serve the metrics of each job too
	// OpenListen returns the socket at Listen. With nil, the agent makes it.
	OpenListen func() (net.Listener, error)
	Version    string
	Log        *slog.Logger
	Interval   time.Duration // 0 means Interval
	// Reap runs ration reap as the given user, for the regions at paths, and waits for it. With
	// nil, the agent returns no memory of dead processes.
	Reap func(ctx context.Context, paths []string, uid int) error
	// PolicyUp returns whether the policy's service answers, or nil if no policy is in force. It may be nil.
	PolicyUp func() *bool
	// Stop ends processes of a job that is over its limit for Grace, and returns the PIDs of those that got
	// the signal. With nil, such jobs are only reported.
	Stop  func(ctx context.Context, s privsep.Stop) ([]int, error)
	Grace time.Duration
}

// Agent watches one machine.
type Agent struct {
	opts    Options
	scanner node.Scanner
	watcher *watcher
	pids    *pidWatch
	reaper  *reaper
	stopper *stopper
	history *history
	usage   *accounts
	idle    *node.Idleness
	events  *eventRing
	feed    *fleet.Feed // its version advances with each snapshot or event

	// Only the goroutine of Run uses these.
	log      eventLog
	journal  *journal
	lookDue  time.Time        // the accounts do not look at the jobs before
	unsaved  bool             // the last attempt to save the journal failed
	deferred <-chan time.Time // fires when deferred jobs are due; nil if there are none

	wake     chan struct{} // a scan is wanted
	scanned  chan struct{} // closed after the first scan
	all      atomic.Bool   // the next scan is of all jobs, not only of those with hints
	snapshot atomic.Pointer[snapshot]

	mu    sync.Mutex
	stats metrics.Agent // guarded by mu
}

// New returns an agent that has not scanned yet.
func New(opts Options) (*Agent, error) {
	a := &Agent{opts: opts, history: newHistory(), events: newEventRing(), feed: fleet.NewFeed(),
		wake: make(chan struct{}, 1), scanned: make(chan struct{}), log: newEventLog(opts.Log, job.User())}
	a.stats.Events = map[string]uint64{}
	for _, kind := range machine.EventKinds {
		a.stats.Events[kind] = 0
	}
	a.scanner = node.NewScanner(job.ScanOptions{Background: true, Wake: a.Wake, Ended: a.scanSoon})
	hint := func(folder string) {
		if folder != "" {
			a.scanner.Hint(folder)
		}
		a.scanSoon()
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
	if a.opts.OpenListen == nil {
		a.opts.OpenListen = func() (net.Listener, error) { return net.Listen(connlimit.Network(opts.Listen), opts.Listen) }
	}
	if a.journal, err = openJournal(opts.Folder); err != nil {
		opts.Log.Warn("events that were logged before may be logged again", "error", err)
	}
	a.usage, a.idle = openAccounts(opts.Usage, opts.Log), node.NewIdleness(opts.IdleAfter)
	a.reaper = newReaper(opts.Reap, hint, opts.Log)
	a.stopper = newStopper(opts.Stop, opts.Grace, hint, opts.Log)
	a.snapshot.Store(&snapshot{})
	return a, nil
}

// Wake makes the agent scan all jobs soon.
func (a *Agent) Wake() {
	a.all.Store(true)
	a.scanSoon()
}

// scanSoon makes the agent scan soon.
func (a *Agent) scanSoon() {
	select {
	case a.wake <- struct{}{}:
	default: // a scan is already wanted
	}
}

// Run scans until the context ends. It calls ready after the first scan.
func (a *Agent) Run(ctx context.Context, ready func()) error {
	defer a.close()
	written := make(chan struct{})
	defer func() {
		select {
		case <-written:
		case <-time.After(lastWrite):
			a.opts.Log.Error("the accounts of usage of the last seconds are not written: the disk, or a report, takes too long")
		}
	}()
	counting, stopCounting := context.WithCancel(context.Background())
	defer stopCounting()
	defer func() { a.usage.meter.Look(a.Machine(), time.Now()) }() // the accounts may not have looked at the last scans
	go func() {
		defer close(written)
		a.usage.run(counting, a.snapshot.Load, a.idle)
	}()
	go a.watcher.run()
	go a.pids.run()
	timer := time.NewTicker(cmp.Or(a.opts.Interval, Interval))
	defer timer.Stop()
	var failed error
	first := true
	scans := rate.NewLimiter(rate.Every(gap), maxScans)
	a.all.Store(true)
	for {
		began := time.Now()
		if err := a.scan(); err != nil && (failed == nil || failed.Error() != err.Error()) {
			a.opts.Log.Error("the jobs could not be listed", "error", err)
			failed = err
		} else if err == nil {
			failed = nil
		}
		if first {
			first = false
			close(a.scanned)
			if ready != nil {
				ready()
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(scans.ReserveN(began, 1).DelayFrom(time.Now()), time.Since(began))):
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
	a.stopper.close()
	a.scanner.Close()
	a.log.end()
	a.journal.close()
}

// scan scans the machine once.
func (a *Agent) scan() error {
	began := time.Now()
	r, err := a.scanner.Scan(a.all.Swap(false))
	if err != nil {
		return err
	}
	if a.deferred = nil; !a.scanner.Deferred().IsZero() {
		a.deferred = time.After(time.Until(a.scanner.Deferred()))
	}
	a.reaper.reap(r.Machine.Jobs) // first, because it takes longest and runs in the background
	a.stopper.check(r.Machine.Escapes, began)
	if r.Changed {
		a.watcher.set(a.scanner.Folders())
		a.pids.set(r.Machine.Jobs)
	}
	before, now := a.snapshot.Load(), *r.Machine
	now.Jobs = a.idle.Mark(r.Machine.Jobs, began)
	changed := r.Changed || !slices.EqualFunc(before.Jobs, now.Jobs, func(a, b machine.Job) bool { return a.IdleSince.Equal(b.IdleSince) })
	if changed {
		a.snapshot.Store(newSnapshot(now, before))
	}
	fresh := a.events.add(slices.Concat(a.journal.withEarlier(r.Events, r.Machine), a.journal.ends(r.Machine, began), a.stopper.take(), idleEvents(before.Jobs, now.Jobs, began)))
	if changed || len(fresh) > 0 {
		a.feed.Advance() // followers now see the snapshot and the events
	}
	a.record(fresh)
	a.history.add(a.Machine(), began)
	a.account(func() { a.usage.meter.Look(a.Machine(), began) })
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stats.Scans++
	a.stats.ScanSeconds, a.stats.Scanned = time.Since(began).Seconds(), began.UnixNano()
	return nil
}

// account looks for the accounts, unless the last look was too short a time ago.
func (a *Agent) account(look func()) {
	began := time.Now()
	if began.Before(a.lookDue) {
		return
	}
	look()
	a.lookDue = time.Now().Add(min(lookRest*time.Since(began), maxLookRest))
}

// Machine returns the machine as of the latest scan. Do not change it.
func (a *Agent) Machine() *machine.Machine { return &a.snapshot.Load().Machine }

// Stats returns the agent's own metrics.
func (a *Agent) Stats() metrics.Agent {
	out := a.ownStats()
	if a.opts.PolicyUp != nil {
		out.PolicyUp = a.opts.PolicyUp()
	}
	return out
}

func (a *Agent) ownStats() metrics.Agent {
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
