package machine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"ration/internal/humanfmt"
	"ration/internal/proc"
	"ration/internal/termtext"
)

// Values of Event.Kind.
const (
	JobStarted     = "start"   // a job was made
	JobEnded       = "end"     // the job's command and all its processes have ended, or the job was removed
	RequestRefused = "refusal" // a request was refused
	ProcessDied    = "death"   // a process died without leaving, and its memory was returned to the job
	// ProcessesStopped means that the agent has ended processes of a job that is over its limit, or is about to.
	ProcessesStopped = "stop"
	JobIdle          = "idle"  // a job holds memory and has done nothing on its devices for a while; only an agent notices
	JobWaits         = "wait"  // a command began to wait for room (Machine.Waiting)
	JobAdmitted      = "admit" // a command that waited has room, and its job was made
	JobGaveUp        = "leave" // a command left the queue without starting
	JobSlept         = "sleep" // a job has fallen asleep
	JobWoke          = "wake"  // a job that slept, or was falling asleep, is awake
	// JobCannotSleep means that a job should have fallen asleep by itself, and could not. It is reported once until the job
	// has slept.
	JobCannotSleep = "cannot-sleep"
	GPUFailed      = "gpu-failed" // the driver has begun to answer with an error when it is asked about a GPU
	GPUReturned    = "gpu-back"   // and answers for it again
	Changed        = "change"     // Machine has changed; only from Watch, after the events of the same read
)

// EventKinds lists the kinds of events of jobs and GPUs: all but Changed.
var EventKinds = []string{JobStarted, JobEnded, RequestRefused, ProcessDied, ProcessesStopped, JobIdle, JobWaits, JobAdmitted, JobGaveUp, JobSlept, JobWoke, JobCannotSleep, GPUFailed, GPUReturned}

// Event is something that happened to a job or a GPU, or a new state of the machine (Changed).
type Event struct {
	Time    time.Time `json:"at"` // not later than the read that noticed it
	Kind    string    `json:"kind"`
	Job     string    `json:"job,omitempty"` // empty for a region outside the folder of jobs
	Path    string    `json:"path"`          // path of the region
	Owner   string    `json:"owner"`
	UID     int       `json:"uid"`                 // the owner's UID; -1 if unknown
	Created time.Time `json:"created_at,omitzero"` // creation time of the job
	Exit    *Exit     `json:"exit,omitempty"`      // for the end of a job, if known
	Refusal *Refusal  `json:"refusal,omitempty"`
	Death   *Death    `json:"death,omitempty"`
	Denied  *Denied   `json:"policy_refusal,omitempty"` // for a refusal by the policy, which has no job
	Stop    *Stop     `json:"stop,omitempty"`
	Waits   *Waiting  `json:"waits,omitempty"`     // for JobWaits, JobAdmitted and JobGaveUp
	Idle    time.Time `json:"idle_since,omitzero"` // since when the job does nothing, for JobIdle
	Sleeps  uint64    `json:"sleeps,omitempty"`    // as in Job, for JobSlept, JobWoke and JobCannotSleep
	Device  *int      `json:"device,omitempty"`    // for GPUFailed and GPUReturned, which are no job's
	Missed  uint64    `json:"missed,omitempty"`    // earlier refusals that are lost, because a region keeps only the latest
	Text    string    `json:"text"`                // a sentence without a period

	// Machine is the machine as of the read that noticed the event. Only Watch sets it. Several
	// events share it: do not modify it.
	Machine *Machine `json:"-"`
}

// EventID identifies an event. It is the same however often and by which process the event is
// noticed.
type EventID struct {
	Kind      string
	Job       JobID
	Time      time.Time // of a refusal, a stop or a GPU's event; since when a job is idle or waits, and a dead process was in the job
	Slot, PID int       // for JobSlept, JobWoke and JobCannotSleep Slot is Event.Sleeps, for a GPU its number
}

// JobID returns the identity of the event's job.
func (e *Event) JobID() JobID { return JobID{e.Path, e.Created} }

// ID returns the event's identity. A job has one start and one end, so their time is not part of
// it.
func (e *Event) ID() EventID {
	id := EventID{Kind: e.Kind, Job: e.JobID()}
	switch {
	case e.Refusal != nil:
		id.Time, id.Slot, id.PID = e.Refusal.Time, e.Refusal.Slot, e.Refusal.PID
	case e.Death != nil:
		id.Time, id.Slot, id.PID = e.Death.since(), e.Death.Slot, e.Death.PID
	case e.Denied != nil:
		id.Time = e.Denied.Time
	case e.Stop != nil:
		id.Time, id.Slot = e.Stop.Time, e.Stop.Device
	case e.Kind == JobIdle:
		id.Time = e.Idle
	case e.Waits != nil:
		id.Time = e.Waits.Since // not its PID: of several programs that wait for one ration any may be named
	case e.Kind == JobSlept || e.Kind == JobWoke || e.Kind == JobCannotSleep:
		id.Slot = int(e.Sleeps)
	case e.Device != nil:
		id.Time, id.Slot = e.Time, *e.Device
	}
	return id
}

// Events returns the events between two reads of the machine, oldest first. With an empty machine
// before, it returns all events that the regions still have. now is the time of the later read. It
// is used as the end time of a job whose end no launcher saw, and no event gets a later time.
func Events(before, after *Machine, now time.Time) (out []Event) {
	now = now.UTC()
	was := map[JobID]*Job{}
	for i := range before.Jobs {
		was[before.Jobs[i].ID()] = &before.Jobs[i]
	}
	for i := range after.Jobs {
		j := &after.Jobs[i]
		id := j.ID()
		before := was[id]
		unchanged := before != nil && j.version != 0 && j.version == before.version
		if j.Error == "" && !unchanged { // with an error its events are unknown now
			out = append(out, eventsOf(before, j, now)...)
		}
		delete(was, id)
	}
	for i := range after.Removed {
		j := &after.Removed[i]
		if id := j.ID(); !slices.ContainsFunc(before.Removed, func(r Job) bool { return r.ID() == id }) {
			out = append(out, eventsOf(was[id], j, now)...)
			was[id] = j
		}
	}
	there, next := map[string]*Job{}, map[JobID]time.Time{} // next has the starts of the jobs that replace those that have ended
	for i := range after.Jobs {
		there[after.Jobs[i].Path] = &after.Jobs[i]
	}
	for _, j := range was {
		other := there[j.Path]
		if j.State == Ended || j.Error != "" || other != nil && other.Error != "" {
			continue
		}
		e := j.event(JobEnded, cmp.Or(j.Ended, now))
		// When a job started may be its user's word: it does not put the end of another one before that one's start.
		if other != nil && other.ID() != j.ID() && other.startedAt().After(j.startedAt()) {
			next[j.ID()] = other.startedAt()
			if next[j.ID()].After(now) {
				next[j.ID()] = now
			}
		}
		e.Text = j.withOwner() + " has ended, and was removed"
		out = append(out, e)
	}
	out = append(out, deniedSince(before.Denied, after.Denied)...)
	out = append(out, waitingSince(before, after, now)...)
	for i := range out {
		out[i].Text = termtext.Printable(out[i].Text) // users choose the names in it, and who decodes JSON may print it
		if out[i].Time.After(now) {                   // a job's user may have written any time
			out[i].Time = now
		}
		if start, replaced := next[out[i].JobID()]; replaced && !out[i].Time.Before(start) { // it was noticed late
			out[i].Time = start.Add(-1)
		}
	}
	slices.SortStableFunc(out, func(a, b Event) int { return a.Time.Compare(b.Time) })
	return out
}

func (j *Job) event(kind string, at time.Time) Event {
	return Event{Time: at, Kind: kind, Job: j.Name, Path: j.ID().Path, Owner: j.Owner, UID: j.UID, Created: j.Created}
}

// startedAt is the time of the event of the job's start. A command says when it began, which is before it makes its job.
func (j *Job) startedAt() time.Time {
	if j.Started.After(j.Created) {
		return j.Started
	}
	return j.Created
}

// withOwner names the job and its owner.
func (j *Job) withOwner() string { return humanfmt.JobOf(j.Title(), j.Owner) }

// IdleEvent returns the event of a job that has become idle.
func (j *Job) IdleEvent(now time.Time) Event {
	e := j.event(JobIdle, now.UTC())
	e.Idle = j.IdleSince
	e.Text = termtext.Printable(fmt.Sprintf("%s holds %s and has done nothing for %s", j.withOwner(), humanfmt.Bytes(j.Held()), humanfmt.Span(now.Sub(j.IdleSince).Truncate(time.Second))))
	return e
}

// deviceEvents returns the events of GPUs that have failed, or answer again. failed has what was known of each, by its number,
// and is updated. Of a GPU that was not known nothing is said: an agent that starts does not know since when.
func deviceEvents(failed map[int]bool, after *Machine, now time.Time) (out []Event) {
	for i := range after.Devices {
		g := &after.Devices[i]
		was, known := failed[g.Device]
		if failed[g.Device] = g.Failed; !known || was == g.Failed {
			continue
		}
		number := g.Device
		e := Event{Time: now.UTC(), Kind: GPUReturned, Owner: proc.UserName(0), Device: &number, Text: fmt.Sprintf("GPU %d answers again", g.Device)}
		if g.Failed {
			e.Kind, e.Text = GPUFailed, fmt.Sprintf("GPU %d does not answer", g.Device)
		}
		for _, f := range after.Findings { // which says why
			if g.Failed && f.Kind == DeviceFailed && f.Device == g.Device {
				e.Text = f.Text
			}
		}
		out = append(out, e)
	}
	return out
}

// sleepEvent returns the event of a job that has fallen asleep or woken up.
func (j *Job) sleepEvent(at time.Time) Event {
	e := j.event(JobWoke, at)
	e.Text = j.withOwner() + " is awake"
	if j.Sleep == Asleep {
		e.Kind, e.Text = JobSlept, fmt.Sprintf("%s sleeps: %s of GPU memory is in host memory", j.withOwner(), humanfmt.Bytes(j.Aside()))
	}
	e.Text, e.Sleeps = termtext.Printable(e.Text), j.Sleeps
	return e
}

// sleepEvents returns the events of a job that has fallen asleep, woken up, or could not sleep.
func sleepEvents(before, after *Job, now time.Time) (out []Event) {
	woke := before.Sleep != "" || before.State == "" // or it was not known before
	if after.Sleep == Asleep && before.Sleep != Asleep || after.Sleep == "" && woke && !after.SleepSince.IsZero() && after.State != Ended {
		out = append(out, after.sleepEvent(cmp.Or(after.SleepSince, now)))
	}
	if after.CannotSleep != "" && (before.CannotSleep == "" || before.Sleeps != after.Sleeps) && after.Sleep == "" {
		e := after.event(JobCannotSleep, now)
		e.Sleeps, e.Text = after.Sleeps, fmt.Sprintf("%s should sleep, and cannot: %s", after.withOwner(), strings.TrimPrefix(after.CannotSleep, "it cannot sleep: "))
		out = append(out, e)
	}
	return out
}

// eventsOf returns the events of a job since an earlier read. before is nil if there was none.
func eventsOf(before, after *Job, now time.Time) (out []Event) {
	if before == nil {
		before = &Job{}
		e := after.event(JobStarted, after.startedAt())
		e.Text = after.withOwner() + " has started"
		out = append(out, e)
	}
	out = append(out, refusalsSince(before, after)...)
	type death struct {
		time      time.Time
		slot, pid int
	}
	seen := map[death]bool{}
	for _, d := range before.Deaths {
		seen[death{d.since(), d.Slot, d.PID}] = true
	}
	for i := range after.Deaths {
		if d := &after.Deaths[i]; !seen[death{d.since(), d.Slot, d.PID}] {
			e := after.event(ProcessDied, d.Time)
			e.Death, e.Text = d, d.Sentence()
			out = append(out, e)
		}
	}
	out = append(out, sleepEvents(before, after, now)...)
	if after.State != Ended || before.State == Ended {
		return out
	}
	ended := after.Ended
	if before.State == "" { // nobody saw it end, if processes outlived its command
		ended = cmp.Or(ended, after.CommandEnded)
	}
	if ended.IsZero() && before.State == "" {
		return out // the time of its end is unknown
	}
	e := after.event(JobEnded, cmp.Or(ended, now))
	e.Exit, e.Text = after.Exit, after.withOwner()+" has ended"
	switch {
	case e.Exit != nil && e.Exit.Signal != 0:
		e.Text += fmt.Sprintf(" by signal %d (%v)", e.Exit.Signal, syscall.Signal(e.Exit.Signal))
	case e.Exit != nil:
		e.Text += fmt.Sprintf(" with exit status %d", e.Exit.Status)
	}
	return append(out, e)
}

// refusalsSince returns the new refusals. A region keeps only the latest refusals, but counts all.
func refusalsSince(before, after *Job) (out []Event) {
	type key struct {
		time              time.Time
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
	if count := after.Refused() - min(after.Refused(), before.Refused()); count > uint64(len(out)) {
		out[len(out)-1].Missed = count - uint64(len(out)) // out[len(out)-1] is the oldest
	}
	return out
}

// Refused returns the number of refused requests, on all devices.
func (j *Job) Refused() (n uint64) {
	for i := range j.Devices {
		n += j.Devices[i].Refused
	}
	return n
}
