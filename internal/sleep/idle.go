package sleep

import (
	"context"
	"errors"
	"time"

	"ration/internal/abi"
	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/node"
	"ration/internal/region"
	"ration/machine"
)

// Rule is when a job falls asleep by itself.
type Rule struct {
	After  time.Duration // when it has done nothing on its devices for so long
	Manual bool          // then only ration wake wakes it
	// Room, if it is not nil, says that the job's room is waited for: it sleeps if it has been unused for job.YieldAfter.
	Room <-chan struct{}
	// Report, if it is not nil, is called after each look with the time since when the job is unused; zero if it is used.
	// cannot is why it could not be put to sleep the last time.
	Report func(since time.Time, cannot string)
}

// Intervals of a process that watches a job.
const (
	lookMost, lookLeast = 5 * time.Second, 500 * time.Millisecond
	// refusedPause is how long a job that could not sleep is left alone.
	refusedPause = time.Minute
	// idleBusy is how long the driver may take to lock a process of an idle job: it has no work under way.
	idleBusy = 200 * time.Millisecond
)

// lookEvery returns how often a job is looked at.
func (r Rule) lookEvery() time.Duration { return max(min(r.After/10, lookMost), lookLeast) }

// watcher watches one job.
type watcher struct {
	job    job.Job
	rule   Rule
	rest   *job.RestFile // nil if it cannot be written
	tell   func(string)
	reader node.Reader
	idle   *node.Idleness

	cannot  string    // why the job could not sleep the last time
	notYet  time.Time // the job is left alone until then
	unknown bool      // it was said that nothing is known of the job's work
	halfway uint64    // count of an unfinished sleep or wake that the last look found; 0 if there was none
}

// WhenIdle puts a job to sleep each time it has done nothing on its devices for the rule's time, until the context
// ends or the job does. tell is called with why the job cannot sleep, once for each reason. folder is the job's,
// or that of the command that is counted in it; empty if the user cannot write there.
//
// Several processes may watch one job: the sleep lock lets one of them act.
func WhenIdle(ctx context.Context, j job.Job, folder string, rule Rule, tell func(string)) {
	w := &watcher{job: j, rule: rule, tell: tell, idle: node.NewIdleness(0)}
	defer w.reader.Close()
	if folder != "" {
		if rest, err := job.WatchRest(folder); err == nil { // without it others do not know that the job may sleep
			w.rest = rest
			defer rest.Close()
		}
	}
	w.restartWaiter()
	tick := time.NewTicker(rule.lookEvery())
	defer tick.Stop()
	for {
		after := rule.After
		select {
		case <-ctx.Done():
			return
		case <-rule.Room:
			after = job.YieldAfter(after)
		case <-tick.C:
		}
		if !w.look(time.Now(), after) {
			return
		}
	}
}

// restartWaiter starts the process that wakes a job that sleeps, which may have been killed. A second one does no harm.
func (w *watcher) restartWaiter() {
	_ = withRegion(w.job, func(r *region.Region) error { // ration wake works without it
		s, word, end, err := begin(r, &calls{})
		if err != nil {
			return err
		}
		defer end()
		if word.State() == abi.Asleep {
			err = s.startWaiter()
		}
		return err
	})
}

// look puts the job to sleep if it has been unused for that long. It returns false when the job has ended.
func (w *watcher) look(now time.Time, after time.Duration) bool {
	m := w.reader.ReadJob(w.job, node.Options{ReadOnly: true})
	j := &m.Jobs[0]
	if j.State == machine.Ended {
		return false
	}
	w.reader.AddTimes(m.Jobs, now)
	w.idle.Look(&m, now)
	since, idle := w.idle.Since(j.ID())
	switch {
	case j.Sleep == machine.FallingAsleep || j.Sleep == machine.Waking:
		w.finish(j.Sleeps)
	case j.Sleep == "" && idle && w.due(now, since, after):
		w.sleep(now, j.Sleeps)
	}
	if node.WorkUnknown(j) && !w.unknown {
		w.unknown = true
		w.tell(w.job.Title() + " will not fall asleep by itself: " + node.UnknownText)
	}
	if !idle {
		w.cannot = "" // what held for the last rest may not hold for the next one
	}
	w.write(j, since, idle)
	if w.rule.Report != nil {
		if !idle || j.Sleep != "" {
			since = time.Time{}
		}
		w.rule.Report(since, w.cannot)
	}
	return true
}

// due reports whether a job should sleep that has done nothing since then.
func (w *watcher) due(now, since time.Time, after time.Duration) bool {
	return now.Sub(since) >= after && !now.Before(w.notYet)
}

func (w *watcher) write(j *machine.Job, since time.Time, idle bool) {
	if w.rest == nil {
		return
	}
	rest := job.Rest{After: w.rule.After, Manual: w.rule.Manual, Sleeps: j.Sleeps, Cannot: w.cannot}
	if idle {
		rest.Since = since.UnixNano()
	}
	if err := w.rest.Write(rest); err != nil {
		w.rest.Close() // so that what it said before does not count
		w.rest = nil
	}
}

// sleep puts the job to sleep. sleeps is the job's count when it was found unused.
func (w *watcher) sleep(now time.Time, sleeps uint64) {
	err := sleepUnused(w.job, w.rule.Manual, sleeps)
	if err == nil {
		w.cannot = ""
		return
	}
	w.notYet = now.Add(max(refusedPause, w.rule.After))
	if errors.Is(err, ErrInUse) {
		return
	}
	if text := err.Error(); text != w.cannot {
		w.cannot = text
		w.tell(w.job.Title() + " has done nothing on the GPU for a while, and should sleep: " + text)
	}
}

func sleepUnused(j job.Job, manual bool, sleeps uint64) error {
	return withRegion(j, func(r *region.Region) error {
		defer job.QueueChanged()
		_, err := Sleep(r, Options{Manual: manual, Busy: idleBusy, Unused: true, Sleeps: &sleeps})
		return err
	})
}

// ForRoom puts a job that may fall asleep by itself to sleep, for a process that waits for its room. It is an error if
// the job cannot sleep, or is used meanwhile.
func ForRoom(of *machine.Job) error {
	j := job.Job{Name: of.Name, Path: of.Path}
	return sleepUnused(j, job.InfoOf(j).WakeManual, of.Sleeps)
}

// finish finishes what a killed process left halfway, so that the job's calls do not wait for ever. If the process
// lives, it has the sleep lock, or will have changed the state at the next look.
func (w *watcher) finish(count uint64) {
	if w.halfway != count {
		w.halfway = count
		return
	}
	_ = withRegion(w.job, func(r *region.Region) error { // the next look tries again
		unlock, err := r.LockSleep(0)
		if err != nil {
			return err
		}
		unlock()
		word, err := r.Sleep()
		// It may be asleep by now. Waking is left to the waiter or ration wake: there may be no room.
		if state := word.State(); err != nil || state != abi.Falling && state != abi.Restoring {
			return err
		}
		_, err = WakeInTurn(r, w.job, launch.Wait{Most: -1, Tell: func(string) {}})
		return err
	})
}

func withRegion(j job.Job, do func(*region.Region) error) error {
	r, err := region.Open(j.Path, region.Options{NoCreate: true})
	if err != nil {
		return err
	}
	defer r.Close()
	return do(r)
}
