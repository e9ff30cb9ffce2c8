package launch

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/machine"
)

// Jobs that may fall asleep by themselves make room for the first in the queue. Only that process puts them to sleep, with
// the rights that it has: jobs of its own user. docs/protocols.md (*The queue*) has the rule.

const (
	// lookForUnused is how often the jobs are read while one that may sleep holds the room.
	lookForUnused = time.Second
	// refusedPause is how long a job that could not sleep is left alone.
	refusedPause = time.Minute
)

// yields reports whether a job makes room for the first in the queue.
func yields(j *machine.Job, now time.Time) bool {
	least := job.YieldAfter(time.Duration(j.SleepAfter) * time.Millisecond)
	return maySleep(j) && !j.UnusedSince.IsZero() && now.Sub(j.UnusedSince) >= least
}

// maySleep reports whether a job may make room later, if it is not used.
func maySleep(j *machine.Job) bool {
	return j.SleepAfter > 0 && j.Sleep == "" && j.CannotSleep == "" && j.State != machine.Ended && j.UID == job.User()
}

// toSleep returns jobs that make enough room if they sleep, the one that has been unused longest first. There are none if
// all of them together would not be enough, and no job that is not needed. later reports whether it is worth looking
// again.
func (w *waiter) toSleep(m *machine.Machine, now time.Time) (jobs []*machine.Job, later bool) {
	for i := range m.Jobs {
		j := &m.Jobs[i]
		later = later || maySleep(j)
		if yields(j, now) && now.After(w.refused[j.ID()]) {
			jobs = append(jobs, j)
		}
	}
	enough := func(asleep []*machine.Job) bool {
		short, _ := w.short(m, asleep...)
		return len(short) == 0
	}
	if len(jobs) == 0 || !enough(jobs) {
		return nil, later
	}
	slices.SortStableFunc(jobs, func(a, b *machine.Job) int {
		return cmp.Or(a.UnusedSince.Compare(b.UnusedSince), cmp.Compare(a.Path, b.Path))
	})
	return job.Yielding(jobs, enough), later
}

// takeIdle takes back the rations of users without programs, if there is room then: as few as are needed. It reports whether
// the room is to be looked at again.
func (w *waiter) takeIdle(m *machine.Machine) (changed bool) {
	uids := w.idle()
	var idle []*machine.Job
	for i := range m.Jobs {
		j := &m.Jobs[i]
		if uid, is := job.PolicyUser(j.Path); is && !job.IsRun(j.Path) && slices.Contains(uids, uid) {
			idle = append(idle, j)
		}
	}
	enough := func(taken []*machine.Job) bool {
		rest := *m
		rest.Jobs = nil
		for i := range m.Jobs {
			if !slices.Contains(taken, &m.Jobs[i]) {
				rest.Jobs = append(rest.Jobs, m.Jobs[i])
			}
		}
		short, _ := w.short(&rest)
		return len(short) == 0
	}
	if len(idle) == 0 || !enough(idle) {
		return false
	}
	for _, j := range job.Yielding(idle, enough) {
		uid, _ := job.PolicyUser(j.Path)
		if w.takeBack(uid) != nil {
			return false // a program has started; the next look finds out
		}
		changed = true
		w.tell(fmt.Sprintf("the ration of %s is taken back: the job had no process", j.Title()))
	}
	return changed
}

// makeRoom takes back rations, or puts one job to sleep that makes room. changed reports whether the room is to be looked at
// again, and later whether it is worth looking after a while.
func (w *waiter) makeRoom(m *machine.Machine) (changed, later bool) {
	if w.idle != nil && w.takeIdle(m) {
		return true, false
	}
	if w.sleep == nil {
		return false, false
	}
	now := time.Now()
	jobs, later := w.toSleep(m, now)
	if len(jobs) == 0 {
		return false, later
	}
	atStep("wait-yield")
	j := jobs[0] // the others after another look
	if err := w.sleep(j); err != nil {
		if w.refused == nil {
			w.refused = map[machine.JobID]time.Time{}
		}
		w.refused[j.ID()] = time.Now().Add(refusedPause)
		return true, later
	}
	w.tell(fmt.Sprintf("%s sleeps to make room: it was not used for %s", j.Title(), humanfmt.Span(now.Sub(j.UnusedSince).Round(time.Second))))
	return true, later
}
