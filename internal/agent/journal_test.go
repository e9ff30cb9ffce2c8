package agent

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/job"
	"ration/machine"
)

// An agent logs and counts what no agent before it has: not the jobs that were there when it was
// started again, and once those that began meanwhile. It knows all of them.
func TestToldOnce(t *testing.T) {
	testFolder(t)
	run := func(name string, jobs, told int) {
		var log bytes.Buffer
		var a *Agent
		t.Run(name, func(t *testing.T) { // at whose end the agent has ended
			a = startAgent(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
			a.await(t, machine.JobStarted, jobs)
			a.await(t, machine.RequestRefused, jobs)
		})
		counted, logged := a.Stats().Events, strings.Count(log.String(), "has started")
		expect.True(t, counted[machine.JobStarted] == uint64(told) && counted[machine.RequestRefused] == uint64(told) && logged == told,
			name, counted, "were counted, and the log has", logged, "starts, want", told, log.String())
	}
	holder(t, "one")
	run("first", 1, 1)
	run("again", 1, 0)
	holder(t, "two")
	run("after a start without an agent", 2, 1)
	run("once more", 2, 0)
	expect.OK(t, os.Remove(filepath.Join(job.Folder(), job.AgentJournal)))
	run("without the file", 2, 2)
}

// The end of a job that ran when its start was told is told, though it ended, and may have been removed,
// while there was no agent, and nothing but that start says so.
func TestToldEnd(t *testing.T) {
	testFolder(t)
	run := func(name string, ends int) {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			a := startAgent(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
			got := a.Stats().Events[machine.JobEnded]
			expect.True(t, got == uint64(ends) && strings.Count(log.String(), "has ended") == ends,
				got, "were counted, want", ends, log.String())
		})
	}
	stays, goes := holder(t, "stays"), holder(t, "goes")
	run("while they run", 0)
	stays.kill()
	goes.kill()
	expect.OK(t, os.RemoveAll(filepath.Join(job.Folder(), "goes")))
	run("after their end", 2)
	run("again", 0)
}

// An agent without a folder remembers nothing: one without a log must not say that an event was told.
func TestToldNowhere(t *testing.T) {
	testFolder(t)
	holder(t, "one")
	a, err := New(Options{Log: slog.New(slog.DiscardHandler)})
	expect.OK(t, err)
	defer a.close()
	a.all.Store(true)
	expect.OK(t, a.scan())
	a.await(t, machine.JobStarted, 1)
	_, err = os.Lstat(filepath.Join(job.Folder(), job.AgentJournal))
	expect.True(t, os.IsNotExist(err), "there is a list of what was told", err)
	expect.True(t, len(a.journal.entries) == 0, "it keeps", len(a.journal.entries), "facts")
}

// toldEvent is an event of a user's.
func toldEvent(uid, number int) *machine.Event {
	return &machine.Event{Kind: machine.JobStarted, Path: fmt.Sprint(number), UID: uid, Time: time.Unix(0, int64(number))}
}

func reopen(t *testing.T, folder string) *journal {
	t.Helper()
	list, err := openJournal(folder)
	expect.OK(t, err)
	t.Cleanup(list.close)
	return list
}

func (l *journal) has(e *machine.Event) bool { return len(l.unlogged([]machine.Event{*e})) == 0 }

func (l *journal) tell(t *testing.T, events ...*machine.Event) {
	t.Helper()
	for _, e := range events {
		l.put(entryOf(e, nil))
	}
	expect.OK(t, l.save(&machine.Machine{}))
}

// What is seen late is told, however early it happened.
func TestToldByName(t *testing.T) {
	folder := t.TempDir()
	reopen(t, folder).tell(t, toldEvent(0, 100))
	list := reopen(t, folder)
	expect.True(t, list.has(toldEvent(0, 100)) && !list.has(toldEvent(0, 50)),
		"an event of an earlier time is taken to be told, or one that was is not")
}

// Wherever a kill, a full disk or a power failure cuts the file, whole lines count, half a line does
// not, and what is written from then on counts.
func TestToldCut(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, job.AgentJournal)
	reopen(t, folder).tell(t, toldEvent(0, 1), toldEvent(0, 2))
	whole, err := os.ReadFile(path)
	expect.OK(t, err)
	for cut := range len(whole) + 1 {
		expect.OK(t, os.WriteFile(path, whole[:cut], 0o600))
		list := reopen(t, folder)
		lines := bytes.Count(whole[:cut], []byte("}"))
		expect.Must(t, list.has(toldEvent(0, 1)) == (lines >= 1) && list.has(toldEvent(0, 2)) == (lines == 2),
			"cut to", whole[:cut], "it is not the", lines, "lines")
		list.tell(t, toldEvent(0, 3))
		list.tell(t, toldEvent(0, 4))
		list.close()
		list = reopen(t, folder)
		expect.Must(t, list.has(toldEvent(0, 3)) && list.has(toldEvent(0, 4)) && list.has(toldEvent(0, 1)) == (lines >= 1),
			"after", whole[:cut], "nothing is remembered")
		list.close()
	}
}

// Whatever is in the place of the file: it is no reason to fail, and it is replaced if it can be.
func TestToldOther(t *testing.T) {
	for name, c := range map[string]struct {
		make   func(path string) error
		opens  bool // it can be read
		stays  bool // it cannot be replaced
		before bool // and has the first event
	}{
		"a line of a newer version": {opens: true, before: true, make: func(path string) error {
			return os.WriteFile(path, fmt.Appendf(nil, "{\"version\":9}\n{\"key\":%d,\"uid\":0,\"more\":[1]}\n", eventKey(toldEvent(0, 1))), 0o600)
		}},
		"noise":     {opens: true, make: func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte("\x00\xff{\n[}"), 9999), 0o600) }},
		"zeros":     {opens: true, make: func(path string) error { return os.WriteFile(path, make([]byte, 8192), 0o600) }},
		"a link":    {make: func(path string) error { return os.Symlink("/etc/hostname", path) }},
		"a pipe":    {make: func(path string) error { return unix.Mkfifo(path, 0o600) }},
		"a folder":  {stays: true, make: func(path string) error { return os.MkdirAll(filepath.Join(path, "x"), 0o700) }},
		"left over": {opens: true, make: func(path string) error { return os.WriteFile(path+job.AgentJournalNew, []byte("x"), 0o400) }},
	} {
		folder := t.TempDir()
		expect.OK(t, c.make(filepath.Join(folder, job.AgentJournal)))
		list, err := openJournal(folder)
		expect.True(t, (err == nil) == c.opens && list.has(toldEvent(0, 1)) == c.before, name, err, "and", list.has(toldEvent(0, 1)))
		for i := 2; i < 4; i++ {
			list.put(entryOf(toldEvent(0, i), nil))
			err := list.save(&machine.Machine{})
			expect.True(t, (err == nil) != c.stays, name, err)
		}
		list.close()
		again, err := openJournal(folder)
		expect.True(t, c.stays || err == nil && again.has(toldEvent(0, 2)) && again.has(toldEvent(0, 3)),
			name, "nothing was remembered", err)
	}
}

// A disk that was full, and a file that was removed, cost nothing once there is another event.
func TestToldAgain(t *testing.T) {
	folder := t.TempDir()
	list := reopen(t, folder)
	list.tell(t, toldEvent(0, 1))
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	expect.OK(t, err)
	defer full.Close()
	file := list.file
	list.file = full
	list.put(entryOf(toldEvent(0, 2), nil))
	expect.True(t, list.save(&machine.Machine{}) != nil, "it was written to a full disk")
	list.file = file
	list.tell(t, toldEvent(0, 3))
	for i := 1; i <= 3; i++ {
		expect.True(t, reopen(t, folder).has(toldEvent(0, i)), "event", i, "is not remembered")
	}
	expect.OK(t, os.Remove(list.path))
	list.tell(t, toldEvent(0, 4))
	for i := 1; i <= 4; i++ {
		expect.True(t, reopen(t, folder).has(toldEvent(0, i)), "event", i, "is not remembered after the file was removed")
	}
}

// The list is bounded for each user. What regions still show stays, with jobs that run, and the latest
// of the rest; and no user's events cost others theirs.
func TestToldTrim(t *testing.T) {
	const eve, ada, lent = 7, 8, 1000
	defer func(was func(int) int) { accountOf = was }(accountOf)
	accountOf = func(uid int) int {
		if uid >= lent {
			return eve
		}
		return uid
	}
	folder := t.TempDir()
	list := reopen(t, folder)
	shown := machine.Job{Path: "shown", UID: eve, State: machine.Running, Devices: []machine.Device{{Refused: 5}}}
	m := machine.Machine{Jobs: []machine.Job{shown}}
	starts := machine.Events(&machine.Machine{}, &m, time.Time{})
	list.put(entryOf(&starts[0], &shown))
	_, counted := list.count(&shown, 5)
	list.put(counted)
	list.put(entryOf(toldEvent(eve, -1), &machine.Job{State: machine.Running})) // not shown, and runs
	list.tell(t, toldEvent(ada, -2), toldEvent(eve, -3))
	const many = 5 * maxEntriesOfUser
	for i := range many {
		list.put(entryOf(toldEvent(lent+i%64, i), nil))
		expect.OK(t, list.save(&m))
	}
	expect.True(t, len(list.entries) <= 3*maxEntriesOfUser, len(list.entries), "facts are kept")
	st, err := os.Stat(list.path)
	expect.True(t, err == nil && st.Size() <= 4<<20, st.Size(), err)
	list.trim(&m)
	expect.OK(t, list.rewrite())
	after := reopen(t, folder)
	for what, e := range map[string]*machine.Event{"what is shown": &starts[0], "what runs": toldEvent(eve, -1), "another user's": toldEvent(ada, -2), "the latest": toldEvent(eve, many-1)} {
		expect.True(t, after.has(e), what, "is not remembered")
	}
	n, _ := after.count(&shown, 0)
	expect.True(t, n == 0 && !after.has(toldEvent(eve, -3)) && len(after.entries) == maxEntriesOfUser+1,
		n, "refusals are counted again, and there are", len(after.entries), "facts")
	expect.Equal(t, len(after.orphans), 2, "jobs are known to have run")
}

// Refusals are counted once by all agents together: those that were seen, and those of which only the
// number is known, whichever the region shows first.
func TestToldCount(t *testing.T) {
	folder := t.TempDir()
	for _, c := range []struct{ total, seen, want uint64 }{
		{300, 256, 300}, // by the first
		{300, 0, 0},
		{900, 256, 600}, // by the next
		{901, 0, 1},     // its entry is not there yet
		{901, 1, 0},
		{901, 388, 0}, // as many as there are
		{901, 1, 1},   // its number is not there yet
		{902, 0, 0},
		{3, 1, 1}, // the job's own word, and less than before
	} {
		list := reopen(t, folder)
		n, fact := list.count(&machine.Job{Path: "p", Devices: []machine.Device{{Refused: 1}, {Refused: c.total - 1}}}, c.seen)
		expect.Equal(t, n, c.want, "of", c, "are counted", fact)
		list.put(fact)
		expect.OK(t, list.save(&machine.Machine{}))
		list.close()
	}
}

// A job is taken to have ended only by a look that would show it.
func TestToldEndUnseen(t *testing.T) {
	folder := t.TempDir()
	list := reopen(t, folder)
	names := []string{"runs", "ended", "removed", "unreadable", "renewed"}
	for _, name := range names {
		list.put(entryOf(&machine.Event{Kind: machine.JobStarted, Path: name, Job: name, Created: time.Unix(0, 1).UTC()}, &machine.Job{State: machine.Running}))
	}
	list.put(entryOf(&machine.Event{Kind: machine.JobStarted, Path: "told"}, &machine.Job{State: machine.Running}))
	list.put(entryOf(&machine.Event{Kind: machine.JobEnded, Path: "told"}, nil))
	expect.OK(t, list.save(&machine.Machine{}))
	ends := func(list *journal, m machine.Machine) (out []string) {
		for _, e := range list.ends(&m, time.Unix(9, 0)) {
			out = append(out, e.Path)
		}
		slices.Sort(out)
		return out
	}
	jobs := []machine.Job{{Path: "runs", Created: time.Unix(0, 1).UTC(), State: machine.Running}, {Path: "ended", Created: time.Unix(0, 1).UTC(), State: machine.Ended},
		{Path: "unreadable", Error: "cut short"}, {Path: "renewed", Created: time.Unix(0, 2).UTC(), State: machine.Running}}
	list = reopen(t, folder)
	expect.Equal(t, len(list.orphans), len(names), "are taken to run")
	partial := machine.Machine{Jobs: jobs, Findings: []machine.Finding{{Kind: machine.Unanswering}}}
	expect.Equal(t, fmt.Sprint(ends(list, partial)), "[ended renewed]", "jobs of a part that have ended")
	expect.Equal(t, fmt.Sprint(ends(list, machine.Machine{Jobs: jobs})), "[removed]", "jobs of the whole that have ended then")
	jobs[2] = machine.Job{Path: "unreadable", Created: time.Unix(0, 1).UTC(), State: machine.Ended}
	expect.Equal(t, fmt.Sprint(ends(list, machine.Machine{Jobs: jobs})), "[unreadable]", "and when it can be read again")
	expect.Equal(t, len(list.orphans), 0, "are waited for")
}

// What an earlier agent has seen and no region shows is known to the next one, in its order: the sleeps of a job, of which
// the region has only the latest, that it waited, was idle, or had processes stopped, and failures of GPUs. Those of a job
// that was removed are not, and the file has a bound.
func TestToldEvents(t *testing.T) {
	folder := t.TempDir()
	l, err := openJournal(folder)
	expect.OK(t, err)
	made := time.Unix(100, 0).UTC()
	at := func(path, kind string, n int) machine.Event {
		return machine.Event{Kind: kind, Path: path, Created: made, Sleeps: uint64(n), Time: made.Add(time.Duration(n) * time.Minute), Text: fmt.Sprint(kind, n)}
	}
	failed := at("", machine.GPUFailed, 0)
	failed.Device = new(int)
	waited := machine.Event{Kind: machine.JobAdmitted, Path: "gone", Waits: &machine.Waiting{PID: 1, Since: made}, Time: made.Add(time.Second), Text: "admitted"}
	stopped := at("p", machine.ProcessesStopped, 1)
	stopped.Stop = &machine.Stop{Time: stopped.Time}
	for _, e := range []machine.Event{at("p", machine.JobStarted, 0), failed, waited, stopped, at("p", machine.JobIdle, 1), at("p", machine.JobSlept, 1), at("q", machine.JobSlept, 1), at("p", machine.JobWoke, 2)} {
		l.put(entryOf(&e, nil))
	}
	m := &machine.Machine{Jobs: []machine.Job{{Path: "p", Created: made}}}
	expect.OK(t, l.save(m))
	l.close()
	l, err = openJournal(folder)
	expect.OK(t, err)
	texts := func(events []machine.Event) (out string) {
		for i := range events {
			out += events[i].Text + " "
		}
		return out
	}
	first := []machine.Event{at("p", machine.JobStarted, 0), at("p", machine.JobSlept, 3)}
	expect.Equal(t, texts(l.withEarlier(first, m)), "gpu-failed0 start0 admitted stop1 idle1 sleep1 wake2 sleep3 ")
	expect.Equal(t, texts(l.withEarlier(first, m)), "start0 sleep3 ")
	for i := range 2 * maxKept {
		e := at("p", machine.JobSlept, i+4)
		l.put(entryOf(&e, nil))
	}
	l.trim(m)
	kept := 0
	for i := range l.entries {
		if l.entries[i].Event != nil {
			kept++
		}
	}
	expect.True(t, kept == maxKept && l.entries[len(l.entries)-1].Event != nil && len(l.entries) == 8+2*maxKept, kept, len(l.entries))
	l.close()
}

// A wait that an earlier agent has logged, and that is over by now, has an end. One that goes on has none, nor one of a folder
// that could not be read.
func TestToldWaits(t *testing.T) {
	list := reopen(t, t.TempDir())
	folder := filepath.Dir(list.path)
	since := time.Unix(100, 0).UTC()
	event := func(kind, name string, pid int) machine.Event {
		return machine.Event{Kind: kind, Path: name, Waits: &machine.Waiting{Job: name, Path: name, Owner: "anna", PID: pid, Since: since}, Time: since}
	}
	for _, e := range []machine.Event{event(machine.JobWaits, "gone", 1), event(machine.JobWaits, "served", 2), event(machine.JobWaits, "waits", 3),
		event(machine.JobWaits, "told", 4), event(machine.JobGaveUp, "told", 0)} {
		list.put(entryOf(&e, nil))
	}
	expect.OK(t, list.save(&machine.Machine{}))
	list = reopen(t, folder)
	ends := func(m machine.Machine) (out []string) {
		m.Waiting = []machine.Waiting{{Job: "waits", Path: "waits", Since: since}}
		m.Jobs = []machine.Job{{Path: "served", Created: since.Add(time.Second), State: machine.Running}}
		for _, e := range list.ends(&m, time.Unix(109, 0)) {
			out = append(out, e.Text)
		}
		slices.Sort(out)
		return out
	}
	expect.Equal(t, len(ends(machine.Machine{Findings: []machine.Finding{{Kind: machine.Unanswering}}})), 0)
	expect.Equal(t, fmt.Sprintf("%q", ends(machine.Machine{})),
		`["job gone of anna left the queue after at most 9 s, while no agent ran" "job served of anna has room after 1 s in the queue"]`)
	expect.Equal(t, len(ends(machine.Machine{})), 0, "they are said once")
}
