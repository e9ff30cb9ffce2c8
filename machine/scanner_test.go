package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/job"
	"ration/internal/region"
)

// scannerAt returns a scanner of an empty folder of jobs, with a timeout for a slow machine.
func scannerAt(t *testing.T) (*scanner, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "jobs")
	t.Setenv(job.EnvFolder, dir)
	t.Setenv(job.EnvRegion, "")
	r := newScanner(job.ScanOptions{})
	r.timeout = time.Minute
	t.Cleanup(r.Close)
	return r, dir
}

// forgetRest lets the next scan be a whole one, however much the scans before it have cost on a busy machine.
func forgetRest(r *scanner) {
	for _, u := range r.users {
		u.state.rested = time.Time{}
	}
}

func mustScan(t *testing.T, r *scanner) (Machine, bool) {
	t.Helper()
	m, changed, err := r.scan(true)
	expect.OK(t, err)
	return m, changed
}

// member makes this process one of a job.
func member(t *testing.T, name string) (*region.Region, *region.Slot) {
	t.Helper()
	path, err := job.MakeFolder(name)
	expect.OK(t, err)
	reg, err := region.Open(path, region.Options{})
	expect.OK(t, err)
	t.Cleanup(func() { _ = reg.Close() })
	s, err := reg.Claim("member")
	expect.OK(t, err)
	return reg, s
}

func (s *scanner) readsOf(name string) int {
	for _, w := range s.users[ownUser].state.jobs {
		if w.name == name {
			return w.reads
		}
	}
	return -1
}

// A job is read again when anything of it has changed, and only then.
func TestScannerReadsWhatChanged(t *testing.T) {
	r, _ := scannerAt(t)
	if m, changed := mustScan(t, r); len(m.Jobs) != 0 || !changed {
		t.Fatalf("got %+v, %v", m, changed)
	}
	reg, s := member(t, "one")
	member(t, "two")
	used := func(m Machine, name string) uint64 {
		for _, j := range m.Jobs {
			if j.Name == name && len(j.Devices) > 0 {
				return j.Devices[0].Used
			}
		}
		return 0
	}
	m, changed := mustScan(t, r)
	expect.Must(t, len(m.Jobs) == 2 && changed, "got", m, changed)
	settle := func() { // a job that was just read has to wait for a moment
		for _, w := range r.users[ownUser].state.jobs {
			w.due = time.Time{}
		}
		r.users[ownUser].state.rested = time.Time{}
	}
	settle()
	mustScan(t, r)
	before := r.readsOf("two")
	for i, change := range []func() error{
		func() error { return s.Charge(0, abi.Data, 1<<20) },
		func() error { return s.Return(0, abi.Data, 1<<19) },
		func() error { return reg.SetLimit(0, abi.MakeLimit(1<<20)) },
		func() error { return refusedOnly(s.Charge(0, abi.Data, 1<<30)) },
	} {
		settle()
		expect.OK(t, change())
		had := r.readsOf("one")
		if _, changed := mustScan(t, r); !changed || r.readsOf("one") != had+1 {
			t.Errorf("change %d was not noticed", i)
		}
		settle()
		if _, changed := mustScan(t, r); changed {
			t.Errorf("after change %d nothing has changed", i)
		}
	}
	m, _ = mustScan(t, r)
	expect.True(t, used(m, "one") == 1<<19 && r.readsOf("two") == before, used(m, "one"), "used, two was read", r.readsOf("two")-before, "times")
	direct, err := Read()
	expect.True(t, err == nil && fmt.Sprint(direct.Jobs[0].Refusals) == fmt.Sprint(m.Jobs[0].Refusals) && len(m.Jobs[0].Refusals) == 1, err, direct.Jobs, m.Jobs)
}

func refusedOnly(err error) error {
	if err == nil {
		return fmt.Errorf("was not refused")
	}
	return nil
}

// A process that dies changes nothing in the region, and is noticed all the same; as are a job
// that was removed, and another of its name.
func TestScannerNoticesDeath(t *testing.T) {
	r, dir := scannerAt(t)
	path, err := job.MakeFolder("short")
	expect.OK(t, err)
	holder := startHolders(t, path)
	m, _ := mustScan(t, r)
	expect.Must(t, len(m.Jobs) == 1 && m.Jobs[0].State == Running && m.Jobs[0].Processes[0].State == Live, "got", m.Jobs)
	expect.OK(t, holder.Process.Kill())
	_ = holder.Wait()
	r.users[ownUser].state.jobs[path].due = time.Time{}
	m, changed := mustScan(t, r)
	expect.Must(t, changed && m.Jobs[0].Processes[0].State == Dead && m.Jobs[0].State == Ended, changed, m.Jobs)
	open := func() (n int) {
		fds, err := os.ReadDir("/proc/self/fd")
		expect.OK(t, err)
		for _, fd := range fds {
			if to, _ := os.Readlink("/proc/self/fd/" + fd.Name()); strings.HasPrefix(to, dir) {
				n++
			}
		}
		return n
	}
	expect.Equal(t, open(), 0, "descriptors of a job that has ended")
	expect.OK(t, os.RemoveAll(filepath.Dir(path)))
	if m, changed := mustScan(t, r); !changed || len(m.Jobs) != 0 {
		t.Fatalf("%v, %+v", changed, m.Jobs)
	}
	member(t, "short")
	if m, changed := mustScan(t, r); !changed || len(m.Jobs) != 1 || m.Jobs[0].State != Running {
		t.Fatalf("%v, %+v", changed, m.Jobs)
	}
}

// A process that is about to end has no lock any more, and is not dead yet. When it has ended, neither
// the words of the region nor its locks change: a scanner that has seen it in between looks again.
func TestScannerNoticesEndOfEnding(t *testing.T) {
	r, _ := scannerAt(t)
	path, err := job.MakeFolder("train")
	expect.OK(t, err)
	holder := startHolders(t, path)
	look := func() Machine {
		if w := r.users[ownUser]; w != nil && w.state.jobs[path] != nil {
			w.state.rested, w.state.jobs[path].due = time.Time{}, time.Time{} // whatever it has cost
		}
		m, _ := mustScan(t, r)
		return m
	}
	state := func(m Machine) string {
		expect.Must(t, len(m.Jobs) == 1 && len(m.Jobs[0].Processes) == 1, "got", m.Jobs)
		return m.Jobs[0].Processes[0].State
	}
	m := look()
	if got := state(m); got != Live {
		t.Fatalf("it is %s", got)
	}
	// As the driver's files of a process are not closed yet, or open in a fork child (region_keep).
	slots, _ := reflect.TypeFor[abi.Region]().FieldByName("Slots")
	files, err := os.OpenFile(path, os.O_RDWR, 0)
	expect.OK(t, err)
	defer files.Close()
	second := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(slots.Offset) + int64(m.Jobs[0].Processes[0].Slot)*int64(slots.Type.Elem().Size()) + 1, Len: 1}
	expect.OK(t, unix.FcntlFlock(files.Fd(), unix.F_OFD_SETLK, &second))
	expect.OK(t, holder.Process.Kill())
	_ = holder.Wait()
	for i := range 2 {
		if got := state(look()); got != Ending || i == 0 && r.due.IsZero() {
			t.Fatalf("it is %s; %v that it wants to look again soon", got, !r.due.IsZero())
		}
	}
	expect.OK(t, files.Close())
	w := r.users[ownUser].state.jobs[path] // it has been so for long: then it is read now and then
	w.endingSince, w.read = w.endingSince.Add(-settleTime), w.read.Add(-endingAge)
	if got := state(look()); got != Dead {
		t.Fatalf("it is %s", got)
	}
	had := r.readsOf("train") // the dead that nobody reaps are no reason to read it again and again
	look()
	look()
	n := r.readsOf("train")
	expect.True(t, n == had && r.due.IsZero(), "it was read", n-had, "times more")
}

// Of thousands of jobs that have ended the latest are read, and no other; one in whose folder
// another begins is noticed by a hint, and without one in a while.
func TestScannerEndedJobs(t *testing.T) {
	const many = 300
	r, dir := scannerAt(t)
	content := regionBytes(t)
	for i := range many {
		folder := filepath.Join(dir, fmt.Sprintf("old-%03d", i))
		expect.OK(t, os.MkdirAll(folder, 0o700))
		expect.OK(t, os.Chmod(dir, 0o700))
		for name, text := range map[string][]byte{job.RegionName: content, "alive": nil} {
			expect.OK(t, os.WriteFile(filepath.Join(folder, name), text, 0o600))
		}
	}
	m, _ := mustScan(t, r)
	expect.Must(t, len(m.Jobs) == keptEnded && m.Hidden == many-keptEnded, len(m.Jobs), "jobs", m.Hidden, "hidden")
	reads := 0
	for _, w := range r.users[ownUser].state.jobs {
		reads += w.reads
	}
	expect.True(t, reads == keptEnded, reads, "were read")
	begin := func(name string) {
		reg, err := region.Open(filepath.Join(dir, name, job.RegionName), region.Options{})
		expect.OK(t, err)
		t.Cleanup(func() { _ = reg.Close() })
		if _, err := reg.Claim("again"); err != nil {
			t.Fatal(err)
		}
	}
	running := func(m Machine) (n int) {
		for _, j := range m.Jobs {
			if j.State == Running {
				n++
			}
		}
		return n
	}
	begin("old-007")
	r.Hint(filepath.Join(dir, "old-007"))
	r.users[ownUser].state.rested = time.Time{}
	m, _ = mustScan(t, r)
	for !r.due.IsZero() { // it was read a moment ago, for long where the machine is slow
		r.users[ownUser].state.rested = time.Time{}
		m, _ = mustScan(t, r)
	}
	expect.True(t, running(m) == 1, "the hint was not followed")
	begin("old-008")
	found := false
	for range endedRounds + 1 {
		r.users[ownUser].state.rested = time.Time{}
		m, _ := mustScan(t, r)
		found = found || running(m) == 2
	}
	expect.True(t, found, "a job that began again was not found")
}

// regionBytes returns what an empty region holds.
func regionBytes(t *testing.T) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "region")
	reg, err := region.Open(path, region.Options{})
	expect.OK(t, err)
	expect.OK(t, reg.Close())
	content, err := os.ReadFile(path)
	expect.OK(t, err)
	return content
}

// A user whose folder does not answer keeps nobody else, and is waited for once. What a look has
// found that ended when nobody waited for it is in the next Read, and so is what was hinted at
// meanwhile.
func TestScannerLeavesSilentUserAlone(t *testing.T) {
	r, dir := scannerAt(t)
	member(t, "mine")
	mustScan(t, r) // the first look at it may take long
	theirs := filepath.Join(filepath.Dir(dir), "theirs")
	content := regionBytes(t)
	for i := range 4 {
		folder := filepath.Join(theirs, fmt.Sprint("old-", i))
		if err := errors.Join(os.MkdirAll(folder, 0o700), os.WriteFile(filepath.Join(folder, job.RegionName), content, 0o600),
			os.WriteFile(filepath.Join(folder, "alive"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	gate := make(chan struct{})
	u := newUserScan(61000, "the folder of jobs of user 61000", nil)
	u.setPaths(func() []string { <-gate; return []string{theirs} }, nil)
	r.users[61000] = u
	r.timeout = time.Second / 10
	silent := func() bool {
		m, _ := mustScan(t, r)
		return len(m.Jobs) > 0 && m.Jobs[0].Name == "mine" &&
			slices.ContainsFunc(m.Findings, func(f Finding) bool { return f.Kind == Unanswering && strings.Contains(f.Text, "61000") })
	}
	states := func() (ended, running int, changed bool) {
		m, changed := mustScan(t, r)
		for _, f := range m.Findings {
			t.Errorf("got %+v", f)
		}
		for _, j := range m.Jobs {
			switch {
			case j.Name == "mine":
			case j.State == Ended:
				ended++
			case j.State == Running:
				running++
			}
		}
		return ended, running, changed
	}
	begin := time.Now()
	expect.Must(t, silent(), "no finding names the user whose folder does not answer")
	took := time.Since(begin)
	expect.True(t, took >= r.timeout, "took", took)
	close(gate)
	<-u.done // and nobody has waited for it
	r.timeout = time.Minute
	if ended, _, changed := states(); ended != 4 || !changed {
		t.Errorf("%d jobs were found late, changed %v", ended, changed)
	}
	if _, _, changed := states(); changed {
		t.Error("they are news twice")
	}

	// Each look looks at one job that has ended: this is the last to be its turn.
	begins := u.state.ended[u.state.turn].path
	gate = make(chan struct{})
	r.timeout = time.Second / 10
	expect.Must(t, silent(), "the user's folder has stopped responding, and the user is not named")
	reg, err := region.Open(begins, region.Options{})
	expect.OK(t, err)
	defer reg.Close()
	if _, err := reg.Claim("again"); err != nil {
		t.Fatal(err)
	}
	r.Hint(filepath.Dir(begins))
	expect.Must(t, silent(), "it has answered")
	close(gate)
	<-u.done
	r.timeout = time.Minute
	ended, running, _ := states()
	for ; !r.due.IsZero(); ended, running, _ = states() { // it was read a moment ago, for long where the machine is slow
		u.state.rested = time.Time{}
	}
	expect.True(t, ended == 3 && running == 1, ended, "ended", running, "running after a hint that came while it did not answer")
}

// As root it finds the jobs of others as Read does.
func TestScannerOfAllUsers(t *testing.T) {
	r, dir := scannerAt(t)
	places := job.Paths{Runtime: filepath.Join(dir, "run"), Temp: filepath.Join(dir, "tmp"), Proc: filepath.Join(dir, "proc"), Home: func(int) string { return "" }}
	r.userPaths, r.allUsers = places, func() bool { return true }
	folder := filepath.Join(places.Runtime, "61000", "ration", "theirs")
	expect.OK(t, os.MkdirAll(folder, 0o700))
	expect.OK(t, os.Chmod(dir, 0o700))
	reg, err := region.Open(filepath.Join(folder, job.RegionName), region.Options{})
	expect.OK(t, err)
	t.Cleanup(func() { _ = reg.Close() })
	if _, err := reg.Claim("member"); err != nil {
		t.Fatal(err)
	}
	elsewhere := filepath.Join(t.TempDir(), "region") // found by its lock
	startHolders(t, elsewhere)
	has := func(m Machine, path string) bool {
		for _, j := range m.Jobs {
			if j.Path == path && j.State == Running {
				return true
			}
		}
		return false
	}
	m, _ := mustScan(t, r)
	expect.True(t, has(m, filepath.Join(folder, job.RegionName)), "the user's job is missing", m.Jobs)
	expect.True(t, unix.Geteuid() != 0 || has(m, elsewhere), "the locked region is missing", m.Jobs)
}

// A limit that an operator changes is in no word of the region, and is noticed.
func TestScannerNoticesOperatorsLimit(t *testing.T) {
	r, _ := scannerAt(t)
	path, err := job.MakeFolder("kept")
	expect.OK(t, err)
	var limits region.Limits
	limits.Memory[0] = abi.MakeLimit(1 << 30)
	expect.OK(t, region.WriteLimitsFile(path, limits))
	member(t, "kept")
	if m, _ := mustScan(t, r); m.Jobs[0].Devices[0].Limit != 1<<30 {
		t.Fatalf("got %+v", m.Jobs)
	}
	reg, err := region.OpenForLimits(path)
	expect.OK(t, err)
	expect.OK(t, reg.SetLimit(0, abi.MakeLimit(1<<29)))
	_ = reg.Close()
	r.users[ownUser].state.jobs[path].due = time.Time{}
	if m, changed := mustScan(t, r); !changed || m.Jobs[0].Devices[0].Limit != 1<<29 {
		t.Errorf("%v, %+v", changed, m.Jobs[0].Devices)
	}
}

// The same for limits that were made after the region was first seen, as a policy does, which makes the region's mount first.
func TestScannerNoticesLimitsMadeLater(t *testing.T) {
	r, _ := scannerAt(t)
	_, s := member(t, "kept")
	mustScan(t, r)
	path, err := job.RegionPath("kept")
	expect.OK(t, err)
	var limits region.Limits
	limits.Memory[0] = abi.MakeLimit(1 << 30)
	expect.OK(t, region.WriteLimitsFile(path, limits))
	operators, err := region.OpenOperatorLimits(path)
	expect.OK(t, err)
	scan := func(want uint64) {
		t.Helper()
		forgetRest(r)
		r.users[ownUser].state.jobs[path].due = time.Time{}
		m, changed := mustScan(t, r)
		expect.True(t, changed && len(m.Jobs[0].Devices) > 0 && m.Jobs[0].Devices[0].Limit == want, changed, m.Jobs[0].Devices)
	}
	expect.OK(t, s.Charge(0, abi.Data, 1<<20)) // a change that the region shows
	scan(1 << 30)
	mustScan(t, r) // nothing is left to notice
	expect.OK(t, operators.SetLimit(0, abi.MakeLimit(1<<29)))
	scan(1 << 29)
}
