package machine

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"ration/internal/abi"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/proc"
	"ration/internal/safepath"
)

// Waiting is a command that waits for room on the devices (ration run --wait), a job that sleeps and waits for room
// to wake, or a user whose first program waits for a ration of the policy. Job, PID, Since and Wants are claims of the process that waits.
type Waiting struct {
	Place int       `json:"place"`           // 1 is the next to start of its queue; each user has one
	Job   string    `json:"job,omitempty"`   // name of the job that it will be; empty if unknown
	Path  string    `json:"path,omitempty"`  // where the region of that job will be
	Owner string    `json:"owner"`           // the user that waits; the UID if it has no name
	UID   int       `json:"uid"`             // the owner's UID
	PID   int       `json:"pid,omitempty"`   // of ration run, or of the user's program; 0 if unknown
	Since time.Time `json:"since,omitzero"`  // when it began to wait
	Wants []Wanted  `json:"wants"`           // memory that it waits for
	Wakes bool      `json:"wakes,omitempty"` // the job exists, and sleeps until it has room
}

// Wanted is the memory of one device that a command waits for.
type Wanted struct {
	Device int    `json:"device"` // -2 for any two
	Bytes  uint64 `json:"bytes"`
}

// Title returns the name of the job that the command will be.
func (w *Waiting) Title() string {
	if w.Job == "" {
		return "of an unknown name"
	}
	return w.Job
}

// withOwner names the job that the command will be, and its owner.
func (w *Waiting) withOwner() string { return humanfmt.JobOf(w.Title(), w.Owner) }

// WantsText names the memory that the command waits for: 20 GiB on GPU 0.
func (w *Waiting) WantsText() string {
	wants := map[int]uint64{}
	for _, one := range w.Wants {
		wants[one.Device] = one.Bytes
	}
	return humanfmt.OnGPUs(wants)
}

// maxWaiting bounds the commands that are shown of one user's queue, except the reader's own.
const maxWaiting = 128

// queueTime bounds the time for reading a queue.
const queueTime = 100 * time.Millisecond

// readQueue returns the commands that wait in a folder of jobs of a user.
func readQueue(folder string, uid int, most int) (out []Waiting) {
	all, err := job.QueueWhile(folder, most, safepath.RealClock.For(queueTime).Left)
	if err != nil {
		return nil
	}
	for i, q := range all {
		out = append(out, waitingAt(i+1, q, folder, uid))
	}
	if folder == job.RootFolder {
		out = append(out, waitingOn(all)...)
	}
	return out
}

// waitingOn returns the users that waited when the policy's service ended. Their programs wait on until the next one starts,
// and have no tickets meanwhile; all are those of the queue. The service writes who waits after it has given a ration.
func waitingOn(all []job.Waiting) (out []Waiting) {
	if !job.PolicyInForce() {
		return nil
	}
	for _, q := range job.WaitingUsers() {
		if slices.ContainsFunc(all, func(w job.Waiting) bool { return w.UID == q.UID }) {
			continue
		}
		if w := waitingAt(q.Place, q.Waiting, job.RootFolder, 0); w.PID != 0 && !w.served() {
			out = append(out, w)
		}
	}
	return out
}

// served reports whether the policy has made the job of a user that waited, or has given it its ration back.
func (w *Waiting) served() bool {
	if w.Wakes {
		return hasRation(w.Path)
	}
	return policyMade(w.Path).After(w.Since)
}

// waitingAt returns what is shown of a command in the queue of a user's folder.
func waitingAt(place int, q job.Waiting, folder string, uid int) Waiting {
	if limit.CheckName("job", q.Job) != nil { // its owner could name another user's job, by the path that comes of it
		q.Job = ""
	}
	w := Waiting{Place: place, Job: q.Job, UID: uid, Wants: []Wanted{}, Wakes: q.Wakes}
	if q.Job != "" {
		w.Path = filepath.Join(folder, q.Job, job.RegionName)
	}
	switch {
	case folder == job.RootFolder && q.UID > 0: // the policy's service waits for a user
		w.UID, w.Path = q.UID, job.OfUserPath(q.UID)
		w.Job = job.ShownName(job.OfUser(q.UID), w.Path)
	case q.Run && q.Job != "": // it will be a run of the policy
		w.Path = job.RunPath(uid, q.Job)
		w.Job = job.ShownName(q.Job, w.Path)
	}
	w.Owner = proc.UserName(w.UID)
	if q.PID > 0 && isWaiting(q, w.UID) {
		w.PID = q.PID
	}
	if q.Since > 0 {
		w.Since = time.Unix(0, q.Since).UTC()
	}
	for _, d := range slices.Sorted(maps.Keys(q.Wants)) {
		w.Wants = append(w.Wants, Wanted{d, q.Wants[d]})
	}
	return w
}

// isWaiting reports whether the process that waits exists, and is of that user. Which one it is is the word of the queue's
// owner, who could name a process of another user. The policy's service names the first client, which may have ended
// a moment ago: its PID may be another process's.
func isWaiting(q job.Waiting, uid int) bool {
	start, err := proc.Started(q.PID)
	owner, _, _, err2 := proc.Owner(q.PID)
	return err == nil && start == q.Start && err2 == nil && owner == uid
}

// readQueues reads the queues of a user's folders again, and reports whether one has changed.
func (s *userState) readQueues(paths []string) (changed bool) {
	uid, most := s.uid, maxWaiting
	if uid == ownUser {
		uid, most = job.User(), maxListed
	}
	var now []Waiting
	if s.uid == ownUser && !job.AllUsers() {
		if q, waits := job.WaitingForRation(uid); waits {
			now = append(now, waitingAt(q.Place, q.Waiting, job.RootFolder, uid))
		}
	}
	for _, folder := range paths {
		now = append(now, readQueue(folder, uid, most)...)
	}
	changed = !slices.EqualFunc(now, s.waiting, func(a, b Waiting) bool {
		wants := slices.Equal(a.Wants, b.Wants)
		return wants && a.Place == b.Place && a.Wakes == b.Wakes && a.Job == b.Job && a.UID == b.UID && a.PID == b.PID && a.Since.Equal(b.Since)
	})
	s.waiting = now
	return changed
}

// waitingSince returns the events of commands that have begun to wait, or wait no more.
func waitingSince(before, after *Machine, now time.Time) (out []Event) {
	type key struct {
		path string
		at   int64
	}
	id := func(w *Waiting) key { return key{w.Path, w.Since.UnixNano()} }
	was := map[key]*Waiting{}
	for i := range before.Waiting {
		was[id(&before.Waiting[i])] = &before.Waiting[i]
	}
	for i := range after.Waiting {
		w := &after.Waiting[i]
		if was[id(w)] == nil && w.Path != "" {
			text := fmt.Sprintf("%s waits for %s", w.withOwner(), w.WantsText())
			if before.Folder != "" { // otherwise it may have begun long ago, at another place
				text += fmt.Sprintf(", place %d in the queue", w.Place)
			}
			out = append(out, w.event(JobWaits, w.Since, text))
		}
		delete(was, id(w))
	}
	for _, w := range was {
		admitted, started := w.admittedAt(after, now)
		waited := humanfmt.Waited(admitted.Sub(w.Since).Round(time.Millisecond))
		unwatched := before.Folder == "" // no scan has seen how its wait ended
		if unwatched && admitted.Equal(now) {
			waited = "at most " + waited
		}
		switch {
		case w.Path == "":
		case started:
			out = append(out, w.event(JobAdmitted, admitted, fmt.Sprintf("%s has room after %s in the queue", w.withOwner(), waited)))
		case unwatched:
			out = append(out, w.event(JobGaveUp, now, fmt.Sprintf("%s left the queue after %s, while no agent ran", w.withOwner(), waited)))
		default:
			out = append(out, w.event(JobGaveUp, now, fmt.Sprintf("%s left the queue after %s without %s", w.withOwner(), waited, map[bool]string{false: "starting", true: "waking"}[w.Wakes])))
		}
	}
	return out
}

// admittedAt returns whether a command that waits no more has got room, and when: before its job was made or woke, as far as
// that is known, and otherwise now. A command makes its job before it leaves the queue, and a job that sleeps is awake or
// about to be.
func (w *Waiting) admittedAt(after *Machine, now time.Time) (at time.Time, admitted bool) {
	before := func(event time.Time) time.Time {
		if event.After(w.Since) && event.Before(now) {
			return event.Add(-1)
		}
		return now
	}
	for i := range after.Jobs {
		switch j := &after.Jobs[i]; {
		case j.ID().Path != w.Path:
		case j.Created.After(w.Since):
			return before(j.startedAt()), true
		case w.Wakes && j.Sleep == "" && j.State != Ended:
			return before(j.SleepSince), true
		case w.Wakes && j.Sleep != Asleep && j.State != Ended:
			return now, true
		}
	}
	if made := policyMade(w.Path); !w.Wakes && made.After(w.Since) {
		return before(made), true
	}
	return now, w.served()
}

// policyMade returns when a policy made the job at a path; the zero time if there is none. The queues of users and the jobs
// of a policy are read by different goroutines: a job that is made, and whose command leaves the queue, after the jobs and
// before the queue were read is not among the jobs. It is a variable for tests.
var policyMade = func(path string) (at time.Time) {
	if _, is := job.PolicyUser(path); is {
		if created, standing := job.StandingSince(job.Job{Name: filepath.Base(filepath.Dir(path)), Path: path}); standing {
			at = timeOf(created)
		}
	}
	return at
}

// hasRation reports whether the job of a policy's user at a path has a ration. A job whose ration was lent leaves the queue
// when it has it back, and wakes after that.
func hasRation(path string) bool {
	_, is := job.PolicyUser(path)
	limits := readMemoryLimits(path)
	return is && slices.ContainsFunc(limits.on[:], func(l abi.Limit) bool { return l.Limited() && l.Bytes() > 0 })
}

func (w *Waiting) event(kind string, at time.Time, text string) Event {
	return Event{Time: at, Kind: kind, Job: w.Job, Path: w.Path, Owner: w.Owner, UID: w.UID, Waits: w, Text: text}
}
