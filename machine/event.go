package machine

import (
	"cmp"
	"fmt"
	"slices"
	"syscall"
	"time"
)

// Kinds of events: Event.Kind.
const (
	JobStarted     = "start"   // a job was made
	JobEnded       = "end"     // a job's command has ended, and no process of it lives; or it was removed
	RequestRefused = "refusal" // a request was refused
	ProcessDied    = "death"   // a process died without leaving, and what it held went back to the job
)

// EventKinds are all of them.
var EventKinds = []string{JobStarted, JobEnded, RequestRefused, ProcessDied}

// Event is something that has happened to a job.
type Event struct {
	Time    int64     `json:"time"` // Unix nanoseconds
	At      time.Time `json:"at"`
	Kind    string    `json:"kind"`
	Job     string    `json:"job,omitempty"` // empty for a region outside the folder of jobs
	Path    string    `json:"path"`          // of the region
	Owner   string    `json:"owner"`
	UID     int       `json:"uid"`               // of the owner; -1 where that is not known
	Created int64     `json:"created,omitempty"` // Unix nanoseconds at which the job was made: another of its name is another one
	Exit    *Exit     `json:"exit,omitempty"`    // of the end of a job, where it is known
	Refusal *Refusal  `json:"refusal,omitempty"`
	Death   *Death    `json:"death,omitempty"`
	Missed  uint64    `json:"missed,omitempty"` // refusals before this one that are not known: there were more than a region keeps
	Text    string    `json:"text"`             // a sentence without its period
}

// EventID names an event for good: however often, and by whomever, it was noticed.
type EventID struct {
	Kind, Path    string
	Created, Time int64
	Slot, PID     int
}

// ID returns it. The end of a job has one time for all who notice it: that of the job.
func (e *Event) ID() EventID {
	id := EventID{Kind: e.Kind, Path: e.Path, Created: e.Created}
	switch {
	case e.Refusal != nil:
		id.Time, id.Slot, id.PID = e.Refusal.Time, e.Refusal.Slot, e.Refusal.PID
	case e.Death != nil:
		id.Time, id.Slot, id.PID = e.Death.Time, e.Death.Slot, e.Death.PID
	}
	return id
}

// Events returns what has happened between two looks at the machine, the earliest first. With an
// empty machine before, it is all that is still known. A job that has ended or was removed without a
// launcher that saw it has ended now.
func Events(before, after *Machine, now time.Time) (out []Event) {
	type identity struct {
		path    string
		created int64
	}
	was := map[identity]*Job{}
	for i := range before.Jobs {
		was[identity{before.Jobs[i].Path, before.Jobs[i].Created}] = &before.Jobs[i]
	}
	for i := range after.Jobs {
		j := &after.Jobs[i]
		id := identity{j.Path, j.Created}
		// What cannot be read at this moment has no past.
		if j.Error == "" {
			out = append(out, eventsOf(was[id], j, now)...)
		}
		delete(was, id)
	}
	there := map[string]*Job{}
	for i := range after.Jobs {
		there[after.Jobs[i].Path] = &after.Jobs[i]
	}
	for _, j := range was {
		if other := there[j.Path]; j.State == Ended || j.Error != "" || other != nil && other.Error != "" {
			continue
		}
		e := j.event(JobEnded, now.UnixNano())
		e.Text = fmt.Sprintf("job %s has ended, and was removed", j.Title())
		out = append(out, e)
	}
	slices.SortStableFunc(out, func(a, b Event) int { return cmp.Compare(a.Time, b.Time) })
	return out
}

func (j *Job) event(kind string, at int64) Event {
	return Event{Time: at, At: timeOf(at), Kind: kind, Job: j.Name, Path: j.Path, Owner: j.Owner, UID: j.UID, Created: j.Created}
}

// eventsOf returns what has happened to a job since it was read before, or nil.
func eventsOf(before, after *Job, now time.Time) (out []Event) {
	if before == nil {
		before = &Job{}
		e := after.event(JobStarted, cmp.Or(after.Started, after.Created))
		e.Text = fmt.Sprintf("job %s of %s has started", after.Title(), after.Owner)
		out = append(out, e)
	}
	out = append(out, refusalsSince(before, after)...)
	seen := map[deathID]bool{}
	for i := range before.Deaths {
		seen[idOfDeath(&before.Deaths[i])] = true
	}
	for i := range after.Deaths {
		if d := &after.Deaths[i]; !seen[idOfDeath(d)] {
			e := after.event(ProcessDied, d.Time)
			e.Death, e.Text = d, d.Sentence()
			out = append(out, e)
		}
	}
	if after.State != Ended || before.State == Ended {
		return out
	}
	if after.Ended == 0 && before.State == "" {
		return out // it ended at a time that nobody knows
	}
	e := after.event(JobEnded, cmp.Or(after.Ended, now.UnixNano()))
	e.Exit, e.Text = after.Exit, fmt.Sprintf("job %s has ended", after.Title())
	switch {
	case e.Exit != nil && e.Exit.Signal != 0:
		e.Text += fmt.Sprintf(" by signal %d (%v)", e.Exit.Signal, syscall.Signal(e.Exit.Signal))
	case e.Exit != nil:
		e.Text += fmt.Sprintf(" with exit status %d", e.Exit.Status)
	}
	return append(out, e)
}

type deathID struct {
	time      int64
	slot, pid int
}

func idOfDeath(d *Death) deathID { return deathID{d.Time, d.Slot, d.PID} }

// refusalsSince returns the refusals that are new. A region keeps the latest; how many there
// were, it counts.
func refusalsSince(before, after *Job) (out []Event) {
	type key struct {
		time              int64
		device, slot, pid int
	}
	seen := map[key]bool{}
	for _, f := range before.Refusals {
		seen[key{f.Time, f.Device, f.Slot, f.PID}] = true
	}
	for i := range after.Refusals {
		f := &after.Refusals[i]
		if seen[key{f.Time, f.Device, f.Slot, f.PID}] {
			continue
		}
		e := after.event(RequestRefused, f.Time)
		e.Refusal, e.Text = f, fmt.Sprintf("device %d: %s", f.Device, f.Sentence(after.Processes))
		out = append(out, e)
	}
	if len(out) == 0 {
		return nil
	}
	if count := after.refused() - min(after.refused(), before.refused()); count > uint64(len(out)) {
		out[len(out)-1].Missed = count - uint64(len(out)) // the earliest of them
	}
	return out
}

func (j *Job) refused() (n uint64) {
	for i := range j.Devices {
		n += j.Devices[i].Refused
	}
	return n
}
