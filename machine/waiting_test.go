package machine

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"ration/check/expect"
	"ration/check/testenv"
	"ration/internal/abi"
	"ration/internal/job"
	"ration/internal/proc"
)

// A command that waits for room is not a job yet: it is listed, and its way through the queue makes events.
func TestWaiting(t *testing.T) {
	r, dir := scannerAt(t)
	scanned := func() (*Machine, []Event) {
		forgetRest(r)
		out, err := r.Scan(true)
		expect.OK(t, err)
		return out.Machine, slices.DeleteFunc(out.Events, func(e Event) bool { return e.Waits == nil })
	}
	scanned()
	enqueue := func(name string) *job.Ticket {
		ticket, err := job.Enqueue(job.Waiting{Job: name, Wants: map[int]uint64{0: 20 << 30}})
		expect.OK(t, err)
		return ticket
	}
	first, second := enqueue("first"), enqueue("second")
	m, events := scanned()
	expect.Must(t, len(m.Waiting) == 2 && len(events) == 2, m.Waiting, events)
	w := m.Waiting[1]
	expect.True(t, w.Place == 2 && w.Job == "second" && w.Path == dir+"/second/region" && w.UID == job.User() && w.PID > 0, w)
	expect.Equal(t, w.WantsText(), "20 GiB on GPU 0")
	expect.True(t, events[0].Kind == JobWaits && events[0].Job == "first", events[0])

	time.Sleep(2 * time.Millisecond)
	member(t, "first")
	first.Leave()
	m, events = scanned()
	expect.Must(t, len(m.Waiting) == 1 && len(events) == 1, m.Waiting, events)
	expect.True(t, events[0].Kind == JobAdmitted && events[0].Job == "first" && m.Waiting[0].Place == 1, events, m.Waiting)

	second.Leave()
	m, events = scanned()
	expect.True(t, len(m.Waiting) == 0 && len(events) == 1 && events[0].Kind == JobGaveUp && events[0].Job == "second", m.Waiting, events)
	_, events = scanned()
	expect.Equal(t, len(events), 0, "events", "again")

	third := enqueue("third")
	defer third.Leave()
	once, err := Read()
	expect.True(t, err == nil && len(once.Waiting) == 1 && once.Waiting[0].Job == "third", err, once.Waiting)
}

// A run of a policy is read by another goroutine than the queue of its user. One that was made in between has started, and so
// has one of which only the record is left.
func TestWaitingRunIsRead(t *testing.T) {
	since := time.Now().Add(-time.Minute)
	w := Waiting{Job: "ben/r2", Path: job.RunPath(4002, "r2"), Owner: "ben", UID: 4002, Since: since}
	made := time.Time{}
	defer func(was func(string) time.Time) { policyMade = was }(policyMade)
	policyMade = func(path string) time.Time { expect.Equal(t, path, w.Path); return made }
	kind := func(jobs ...Job) string {
		events := waitingSince(&Machine{Waiting: []Waiting{w}}, &Machine{Jobs: jobs}, time.Now())
		expect.Must(t, len(events) == 1, events)
		if start := since.Add(time.Second); made.Equal(start) || len(jobs) > 0 { // the queue comes before the job
			expect.True(t, events[0].Time.Equal(start.Add(-1)), events[0].Time, start)
		}
		return events[0].Kind
	}
	expect.Equal(t, kind(), JobGaveUp)
	made = since.Add(-time.Second) // an earlier one of its name
	expect.Equal(t, kind(), JobGaveUp)
	made = since.Add(time.Second)
	expect.Equal(t, kind(), JobAdmitted)
	made = time.Time{}
	record := Job{Path: "/run/user/4002/ration/r2/region", Created: since.Add(time.Second), State: Ended, ranAs: w.Path}
	expect.Equal(t, kind(record), JobAdmitted)
}

// The PID of a command in another user's queue is that user's word, and counts only for a process of that user.
func TestWaitingProcessOfAnother(t *testing.T) {
	testenv.NeedsRoot(t, "needs a process of another user")
	const liar = 65534
	cmd := exec.Command("sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: liar, Gid: liar}}
	expect.OK(t, cmd.Start())
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	for _, c := range []struct{ uid, pid, shown int }{{0, os.Getpid(), os.Getpid()}, {liar, os.Getpid(), 0}, {liar, cmd.Process.Pid, cmd.Process.Pid}, {0, cmd.Process.Pid, 0}} {
		start, err := proc.Started(c.pid)
		expect.OK(t, err)
		w := waitingAt(1, job.Waiting{Job: "train", PID: c.pid, Start: start}, "/tmp/ration-65534", c.uid)
		expect.Equal(t, w.PID, c.shown, c)
		w = waitingAt(1, job.Waiting{Job: "train", PID: c.pid, Start: start + 1}, "/tmp/ration-65534", c.uid)
		expect.Equal(t, w.PID, 0, "another process had that PID")
		// In root's queue the policy's service names a client, whose PID may be another process's by now.
		w = waitingAt(1, job.Waiting{Job: "user-65534", UID: liar, PID: c.pid, Start: start}, job.RootFolder, 0)
		expect.True(t, w.UID == liar && w.PID == 0 == (c.pid == os.Getpid()), "of the queue of the policy's service", w)
	}
}

// A job that sleeps waits for room, too. It is admitted when it sleeps no more.
func TestWaitingToWake(t *testing.T) {
	at := func(sleep string, waiting ...Waiting) *Machine {
		return &Machine{Folder: "/jobs", Waiting: waiting, Jobs: []Job{{Name: "nb", Path: "/jobs/nb/region", Created: time.Unix(1, 0), Sleep: sleep}}}
	}
	waits := Waiting{Place: 1, Job: "nb", Path: "/jobs/nb/region", Owner: "anna", PID: 7, Since: time.Unix(2, 0), Wants: []Wanted{{0, 20 << 30}}, Wakes: true}
	for _, c := range []struct{ sleep, kind, text string }{
		{Waking, JobAdmitted, "job nb of anna has room after 8 s in the queue"},
		{"", JobAdmitted, "job nb of anna has room after 8 s in the queue"},
		{Asleep, JobGaveUp, "job nb of anna left the queue after 8 s without waking"},
	} {
		events := waitingSince(at(Asleep, waits), at(c.sleep), time.Unix(10, 0))
		expect.Must(t, len(events) == 1, events)
		expect.True(t, events[0].Kind == c.kind && events[0].Text == c.text, events[0].Kind, events[0].Text)
	}
}

// A job that woke, or was made, had room before that, and waited for so long.
func TestAdmittedBeforeStart(t *testing.T) {
	since, start, now := time.Unix(10, 0).UTC(), time.Unix(15, 0).UTC(), time.Unix(20, 0)
	for _, wakes := range []bool{false, true} {
		w := Waiting{Job: "nb", Path: "/jobs/nb/region", Owner: "anna", Since: since, Wakes: wakes}
		j := Job{Name: "nb", Path: w.Path, Owner: "anna", Created: start, State: Ended, Ended: start.Add(time.Second)}
		want := "admit start end"
		before := &Machine{Folder: "/jobs", Waiting: []Waiting{w}}
		if wakes {
			j = Job{Name: "nb", Path: w.Path, Created: time.Unix(1, 0), State: Running, Sleeps: 1, SleepSince: start}
			before.Jobs = []Job{j}
			before.Jobs[0].Sleep, before.Jobs[0].SleepSince = Asleep, time.Unix(5, 0)
			want = "admit wake"
		}
		var kinds []string
		events := Events(before, &Machine{Folder: "/jobs", Jobs: []Job{j}}, now)
		for _, e := range events {
			kinds = append(kinds, e.Kind)
		}
		expect.Equal(t, strings.Join(kinds, " "), want)
		expect.True(t, strings.HasSuffix(events[0].Text, "after 5 s in the queue"), events[0].Text)
	}
}

// A place in the queue is said of a command that was seen to begin to wait, and not of one that has waited for long.
func TestWaitingPlace(t *testing.T) {
	waits := &Machine{Waiting: []Waiting{{Place: 2, Job: "a", Path: "/jobs/a/region", Owner: "anna", PID: 7, Since: time.Unix(2, 0), Wants: []Wanted{{0, 20 << 30}}}}}
	for folder, want := range map[string]string{"": "job a of anna waits for 20 GiB on GPU 0", "/jobs": "job a of anna waits for 20 GiB on GPU 0, place 2 in the queue"} {
		events := waitingSince(&Machine{Folder: folder}, waits, time.Unix(10, 0))
		expect.Must(t, len(events) == 1, events)
		expect.Equal(t, events[0].Text, want)
	}
}

// A job whose ration was lent leaves the queue when it has the ration back, and wakes after that.
func TestWaitingToWakeForRation(t *testing.T) {
	path := job.OfUserPath(4002)
	defer func(was func(string) memoryLimits) { readMemoryLimits = was }(readMemoryLimits)
	for size, kind := range map[uint64]string{0: JobGaveUp, 20 << 30: JobAdmitted} {
		readMemoryLimits = func(string) (out memoryLimits) {
			out.known, out.on[0], out.on[1] = true, abi.MakeLimit(size), abi.MakeLimit(0)
			return out
		}
		asleep := Job{Name: "ben", Path: path, Created: time.Unix(1, 0), Sleep: Asleep}
		waits := Waiting{Place: 1, Job: "ben", Path: path, Owner: "ben", UID: 4002, Since: time.Unix(2, 0), Wakes: true}
		events := waitingSince(&Machine{Waiting: []Waiting{waits}, Jobs: []Job{asleep}}, &Machine{Jobs: []Job{asleep}}, time.Unix(10, 0))
		expect.Must(t, len(events) == 1, events)
		expect.Equal(t, events[0].Kind, kind, size)
	}
}

// One wait is one event, whichever of the programs that wait for one ration is named.
func TestWaitingOnce(t *testing.T) {
	at := func(pid int) *Machine {
		return &Machine{Folder: "/jobs", Waiting: []Waiting{{Place: 1, Job: "anna", Path: job.OfUserPath(4001), Owner: "anna", UID: 4001, PID: pid, Since: time.Unix(2, 0), Wants: []Wanted{{2, 100 << 30}}}}}
	}
	for _, pid := range []int{0, 8} { // the first program has ended, and another of the user goes on
		events := waitingSince(at(7), at(pid), time.Unix(10, 0))
		expect.Equal(t, len(events), 0, events)
		first, later := waitingSince(&Machine{}, at(7), time.Unix(10, 0)), waitingSince(&Machine{}, at(pid), time.Unix(10, 0))
		expect.True(t, first[0].ID() == later[0].ID(), first[0].ID(), later[0].ID())
	}
}
