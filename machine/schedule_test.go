package machine

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/job"
)

// keepFiles has the files of a process's slot open, and maps the page of it, as a fork child does
// (region_keep in shim/region/alive.c): who asks finds this process. release ends that.
func keepFiles(t *testing.T, path string, slot int) (release func()) {
	t.Helper()
	slots, _ := reflect.TypeFor[abi.Region]().FieldByName("Slots")
	files, err := os.OpenFile(path, os.O_RDWR, 0)
	expect.OK(t, err)
	second := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(slots.Offset) + int64(slot)*int64(slots.Type.Elem().Size()) + 1, Len: 1}
	expect.OK(t, unix.FcntlFlock(files.Fd(), unix.F_OFD_SETLK, &second))
	page, err := unix.Mmap(int(files.Fd()), int64(slot)*int64(os.Getpagesize()), os.Getpagesize(), unix.PROT_NONE, unix.MAP_SHARED)
	expect.OK(t, err)
	return sync.OnceFunc(func() {
		if err := errors.Join(unix.Munmap(page), files.Close()); err != nil { // a mapping keeps an open file
			t.Error(err)
		}
	})
}

// A look may come while a process ends, as the first sign of that is a file that it closes. It costs no
// more than any other: to ask every process of the machine who has its files is for one that has been
// ending for long, and then that does not keep the job from being read. The sign that comes when the
// process has ended makes the job be read, however long that took.
func TestScannerSeesAProcessThatEnds(t *testing.T) {
	r, _ := scannerAt(t)
	path, err := job.MakeFolder("train")
	expect.OK(t, err)
	first, second := startHolders(t, path), startHolders(t, path)
	var w *tracked
	// It is not the machine's speed that is tested: what a read has cost is forgotten.
	look := func(hint bool) map[int]Process {
		t.Helper()
		if u := r.users[ownUser]; u != nil {
			u.state.rested, w.due = time.Time{}, time.Time{}
		}
		all := true
		if hint {
			all = false
			r.Hint(filepath.Dir(path))
		}
		m, _, err := r.scan(all)
		expect.OK(t, err)
		w = r.users[ownUser].state.jobs[path]
		out := map[int]Process{}
		for _, p := range m.Jobs[0].Processes {
			out[p.PID] = p
		}
		return out
	}
	check := func(what string, got map[int]Process, one, two string, asked int) {
		t.Helper()
		a, b := got[first.Process.Pid], got[second.Process.Pid]
		expect.Must(t, a.State == one && b.State == two && w.asked == asked && (asked != 0 || len(a.KeptBy) == 0) && len(b.KeptBy) == 0,
			what, "they are", a.State, "kept by", a.KeptBy, "and", b.State, "kept by", b.KeptBy, "it was asked", w.asked, "times")
	}
	kill := func(c *exec.Cmd) {
		t.Helper()
		expect.OK(t, c.Process.Kill())
		_ = c.Wait()
	}
	const keeper = 4711
	check("at first", look(false), Live, Live, 0)
	slots := map[int]int{}
	for _, p := range w.job.Processes {
		slots[p.PID] = p.Slot
	}
	release := keepFiles(t, path, slots[first.Process.Pid])
	t.Cleanup(release)
	kill(first)
	check("one begins to end", look(true), Ending, Live, 0)
	check("and the clock makes it look", look(false), Ending, Live, 0)
	w.endingSince = w.endingSince.Add(-settleTime)
	check("it takes long", look(false), Ending, Live, 1)
	expect.True(t, w.askDue.After(time.Now()), "the kernel is asked again at once about the processes that have its files")
	had := w.reads
	check("nothing has changed", look(false), Ending, Live, 1)
	expect.True(t, w.reads == had, "it was read again")
	releaseOther := keepFiles(t, path, slots[second.Process.Pid])
	t.Cleanup(releaseOther)
	w.askDue = time.Time{}
	w.job.Processes[slices.IndexFunc(w.job.Processes, func(p Process) bool { return p.PID == first.Process.Pid })].KeptBy = []int{keeper} // whether or not it was found in time
	kill(second)
	got := look(true)
	check("another begins to end", got, Ending, Ending, 1)
	by := got[first.Process.Pid].KeptBy
	expect.True(t, slices.Equal(by, []int{keeper}), "it is kept by", by, "now")
	releaseOther()
	check("it ends", look(false), Ending, Dead, 1)
	w.endingSince, w.askDue = w.endingSince.Add(-settleTime), time.Now().Add(time.Hour)
	release()
	check("the first ends, and there is a sign", look(true), Dead, Dead, 1)
}

// What it costs to ask who has files does not count as what the job costs.
func TestAskingDelaysNoRead(t *testing.T) {
	r, _ := scannerAt(t)
	path, err := job.MakeFolder("train")
	expect.OK(t, err)
	holder := startHolders(t, path)
	mustScan(t, r)
	w := r.users[ownUser].state.jobs[path]
	t.Cleanup(keepFiles(t, path, w.job.Processes[0].Slot))
	expect.OK(t, holder.Process.Kill())
	_ = holder.Wait()
	w.due, r.users[ownUser].state.rested = time.Time{}, time.Time{}
	mustScan(t, r)
	expect.Must(t, w.job.Processes[0].State == Ending, "it is", w.job.Processes[0].State)
	due := w.due
	w.askKeepers(budgetForAll())
	expect.True(t, w.asked == 1 && w.due == due, "asked", w.asked, "times, due", w.due.Sub(due), "later")
}

// While the scanner rests from a user's costly jobs, it still notices that a process has ended. Everything else
// waits.
func TestScannerNoticesDeathInTheRest(t *testing.T) {
	r, dir := scannerAt(t)
	_, slot := member(t, "busy")
	path, err := job.MakeFolder("train")
	expect.OK(t, err)
	startHolders(t, path) // so that the job goes on
	holder := startHolders(t, path)
	mustScan(t, r)
	s := &r.users[ownUser].state
	s.rested = time.Now().Add(time.Hour)
	for _, w := range s.jobs {
		w.due = time.Time{}
	}
	expect.OK(t, slot.Charge(0, abi.Data, 1<<20))
	expect.OK(t, holder.Process.Kill())
	_ = holder.Wait()
	had := r.readsOf("busy")
	r.Hint(filepath.Join(dir, "busy"))
	r.Hint(filepath.Dir(path))
	s.dyingDue = time.Now().Add(time.Minute) // also that has its bound
	m, changed, err := r.scan(false)
	expect.Must(t, err == nil && !changed && r.due.Equal(s.dyingDue) && dead(m, "train") == 0, err, changed, "put off until", r.due, m.Jobs)
	s.dyingDue = time.Time{}
	r.setDue()
	m, changed, err = r.scan(false)
	expect.Must(t, err == nil && changed && dead(m, "train") == 1, err, changed, m.Jobs)
	n := r.readsOf("busy")
	expect.True(t, n == had && r.due.Equal(s.rested), "the other was read", n-had, "times, and put off until", r.due)
	expect.True(t, !s.dyingDue.IsZero(), "it costs nothing")
	s.rested = time.Time{}
	r.setDue()
	_, _, err = r.scan(false)
	expect.True(t, err == nil && r.readsOf("busy") == had+1, err, "after the rest it was read", r.readsOf("busy")-had, "times")
}

// setDue makes this user's deferred work due.
func (s *scanner) setDue() { s.users[ownUser].last.due = time.Unix(1, 0) }

func dead(m Machine, name string) (n int) {
	for _, j := range m.Jobs {
		for _, p := range j.Processes {
			if j.Name == name && p.State == Dead {
				n++
			}
		}
	}
	return n
}

// A look for ends has a bound, as any other: what it does not come to is of the next. It opens nothing for
// longer, and does not ask who has files.
func TestLookForEndsIsBounded(t *testing.T) {
	r, _ := scannerAt(t)
	names := []string{"one", "two"}
	var holders []*exec.Cmd
	for _, name := range names {
		path, err := job.MakeFolder(name)
		expect.OK(t, err)
		startHolders(t, path) // so that the job goes on
		holders = append(holders, startHolders(t, path))
	}
	mustScan(t, r)
	for _, h := range holders {
		expect.OK(t, h.Process.Kill())
		_ = h.Wait()
	}
	s := &r.users[ownUser].state
	spent := time.Duration(0)
	s.cost = func() time.Duration { spent += deathsCost/2 + 1; return spent } // so that one is enough
	for _, w := range s.jobs {
		w.due = time.Time{}
		w.close()
		r.Hint(filepath.Dir(w.path))
	}
	for want := 1; want <= len(names); want++ {
		s.rested, s.dyingDue = time.Now().Add(time.Hour), time.Time{}
		r.setDue()
		m, _, err := r.scan(false)
		got := dead(m, "one") + dead(m, "two")
		expect.Must(t, err == nil && got == want, err, got, "were noticed, not", want)
	}
	for _, w := range s.jobs {
		expect.True(t, w.dir < 0 && w.asked <= 0, w.name, "descriptor", w.dir, "asked", w.asked, "times")
	}
}

// Jobs that were read at once when they were found are not read at once again: a look reads those that
// were read longest ago, until it has cost enough.
func TestScannerRenewsAFewAtATime(t *testing.T) {
	r, _ := scannerAt(t)
	names := []string{"a", "b", "c", "d", "e"}
	for _, name := range names {
		member(t, name)
	}
	mustScan(t, r)
	s := &r.users[ownUser].state
	for i, w := range s.active {
		w.read, w.due = time.Now().Add(-fullAge-time.Duration(i)*time.Second), time.Time{}
	}
	reads := func() (out [5]int) {
		for i, name := range names {
			out[i] = r.readsOf(name)
		}
		return out
	}
	spent := time.Duration(0)
	s.cost = func() time.Duration { spent += renewCost/2 + 1; return spent } // so that two are enough
	for _, want := range [][5]int{{1, 1, 1, 2, 2}, {1, 2, 2, 2, 2}, {2, 2, 2, 2, 2}, {2, 2, 2, 2, 2}} {
		s.rested = time.Time{}
		mustScan(t, r)
		got := reads()
		expect.Must(t, got == want, "they were read", got, "times, not", want)
	}
}
