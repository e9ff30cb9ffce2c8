package machine

import (
	"fmt"
	"os"
	"path/filepath"
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

// A hint waits for no Read: who watches folders would lose what happens there meanwhile.
func TestHintWaitsForNoRead(t *testing.T) {
	r, dir := scannerAt(t)
	r.mu.Lock()
	r.Hint(dir)
	r.mu.Unlock()
	hints := r.takeHints()
	expect.True(t, len(hints) == 1 && len(r.takeHints()) == 0, hints)
}

// A region that was found by its lock is forgotten when it is not locked any more. Where the kernel's list
// is cut, which a user can bring about, one whose processes ran at the last look stays, up to a number.
func TestScannerForgetsLockedRegions(t *testing.T) {
	r, _ := scannerAt(t)
	id := func(i int) (f job.FileID) { return job.FileOf(&unix.Stat_t{Ino: uint64(i + 1)}) }
	fill := func(n int, states ...string) {
		clear(r.outside)
		for i := range n {
			u := newUserScan(0, "a region", nil)
			u.last.jobs = []Job{{State: states[i%len(states)]}}
			r.outside[id(i)] = u
		}
	}
	fill(4, Running, Ended)
	listed := map[job.FileID]bool{id(1): true}
	expect.True(t, r.forgetOutside(nil, listed, false) && len(r.outside) == 3 && r.outside[id(3)] == nil, "of a list that is cut", r.outside)
	expect.True(t, !r.forgetOutside(nil, map[job.FileID]bool{id(1): true}, false), "there was nothing to forget")
	expect.True(t, r.forgetOutside(nil, map[job.FileID]bool{id(1): true}, true) && len(r.outside) == 1, "of a list that is whole", r.outside)
	expect.True(t, r.forgetOutside(map[job.FileID]bool{id(1): true}, map[job.FileID]bool{id(1): true}, true) && len(r.outside) == 0,
		"of one that is known otherwise", r.outside)
	fill(2*maxOutside, Running)
	r.forgetOutside(nil, nil, false)
	expect.True(t, len(r.outside) == maxOutside, len(r.outside), "are kept")
}

// openJobs counts the jobs of a user of which descriptors are open.
func (u *userScan) openJobs() (n int) {
	for _, w := range u.state.jobs {
		if w.dir >= 0 {
			n++
		}
	}
	return n
}

// A user with very many jobs takes the descriptors of no other: of a bounded number of jobs some are
// kept open. The others are looked at all the same, up to a number, and it is said that there are more.
func TestScannerKeepsFewOpen(t *testing.T) {
	r, _ := scannerAt(t)
	const jobs = 3 * minOpen
	r.files = 0 // so that it is minOpen
	var last *region.Slot
	for i := range jobs {
		_, last = member(t, fmt.Sprintf("job-%03d", i))
	}
	m, _ := mustScan(t, r)
	if open := r.users[ownUser].openJobs(); len(m.Jobs) != jobs || open != minOpen {
		t.Fatalf("%d jobs, %d open", len(m.Jobs), open)
	}
	if f := r.Folders()[0]; len(f.Active) != minOpen || len(f.Opened) != jobs-minOpen {
		t.Errorf("%d, and %d that are opened at each look", len(f.Active), len(f.Opened))
	}
	expect.OK(t, last.Charge(0, abi.Data, 1<<20))
	for _, w := range r.users[ownUser].state.jobs {
		w.due = time.Time{}
	}
	forgetRest(r)
	if m, changed := mustScan(t, r); !changed || m.Jobs[jobs-1].Devices[0].Used != 1<<20 {
		t.Errorf("the last of them was not looked at again: %v, %+v", changed, m.Jobs[jobs-1])
	}
	r.active = jobs
	member(t, "a-new") // by its name it would be the first
	forgetRest(r)
	m, _ = mustScan(t, r)
	if open := r.users[ownUser].openJobs(); len(m.Jobs) != jobs || open != minOpen || m.Jobs[0].Name != "job-000" {
		t.Errorf("%d jobs from %s, %d open", len(m.Jobs), m.Jobs[0].Name, open)
	}
	expect.True(t, slices.ContainsFunc(m.Findings, func(f Finding) bool { return f.Kind == Unanswering && strings.Contains(f.Text, "holds more") }),
		"it is not said that there are more", m.Findings)
}

// The bounds are divided among accounts: a user who has very many jobs, or many subordinate users with some,
// takes nothing from another.
func TestBoundsAreDividedAmongAccounts(t *testing.T) {
	r, _ := scannerAt(t)
	r.files = 900 * jobFiles
	of := func(account, jobs int) *userScan {
		return &userScan{account: account, last: userResult{active: make([]string, jobs)}}
	}
	most := r.boundsOf([]*userScan{of(1, 2000), of(2, 2), of(3, 0)})
	expect.True(t, most[1].open == 900-2-2*minOpen && most[2].open == 2+minOpen && most[3].open == minOpen && most[1].active == maxActive, "got", most)
	var all []*userScan
	for range 20 {
		all = append(all, of(-2, 100))
	}
	if most := r.boundsOf(append(all, of(5, 400))); most[-2].open != (900-400-minOpen)/20 || most[5].open != 400+minOpen || most[-2].active != maxActive/20 {
		t.Errorf("got %v", most)
	}
	for i := range 100 {
		all = append(all, of(100+i, 1))
	}
	if most := r.boundsOf(all); most[100].active != maxAllActive/101 {
		t.Errorf("among many: %v", most[100])
	}
}

// A job that stands has not ended, though no process has a lock of it: however many there are, all are
// shown.
func TestScannerShowsStandingJobs(t *testing.T) {
	r, dir := scannerAt(t)
	const many = 2 * keptEnded
	for i := range many {
		path, err := job.MakeFolder(fmt.Sprint("stands-", i))
		expect.OK(t, err)
		for name, text := range map[string][]byte{job.RegionName: regionBytes(t), "alive": nil, job.CreatedName: []byte("1\n")} {
			expect.OK(t, os.WriteFile(filepath.Join(filepath.Dir(path), name), text, 0o600))
		}
	}
	m, _ := mustScan(t, r)
	expect.True(t, len(m.Jobs) == many && m.Hidden == 0 && m.Jobs[0].State == Idle, dir, len(m.Jobs), "jobs", m.Hidden, "hidden, the first is", m.Jobs[0].State)
}

// A user who is not there any more is forgotten, with the jobs; one who does not answer is not.
func TestScannerForgetsUsers(t *testing.T) {
	r, dir := scannerAt(t)
	r.userPaths = job.Paths{Runtime: filepath.Join(dir, "run"), Temp: filepath.Join(dir, "tmp"), Proc: filepath.Join(dir, "proc"), Home: func(int) string { return "" }}
	r.allUsers = func() bool { return true }
	folder := filepath.Join(r.userPaths.Runtime, "61000", "ration", "train")
	expect.OK(t, os.MkdirAll(folder, 0o700))
	expect.OK(t, os.WriteFile(filepath.Join(folder, job.RegionName), regionBytes(t), 0o600))
	hasUser := func() (of, kept bool) {
		r.found = time.Time{}
		mustScan(t, r)
		return r.users[61000] != nil, r.quotas[61000] != nil
	}
	if of, kept := hasUser(); !of || !kept || len(r.users[61000].last.jobs) != 1 {
		t.Fatalf("%v, %v", of, kept)
	}
	expect.OK(t, os.RemoveAll(filepath.Join(r.userPaths.Runtime, "61000")))
	u := r.users[61000]
	u.running = true
	if of, _ := hasUser(); !of {
		t.Error("one whose look has not ended was forgotten")
	}
	u.running, r.found = false, time.Time{}
	if m, changed := mustScan(t, r); !changed || r.users[61000] != nil || r.quotas[61000] != nil || slices.ContainsFunc(m.Jobs, func(j Job) bool { return j.Path == filepath.Join(folder, job.RegionName) }) {
		t.Errorf("%v, %+v", changed, m.Jobs)
	}
}

// A region of another user's in a user's folder, as a user can put it there whom another lets, is
// not called by the folder's name: who asks for that user's job by its name would get another's.
func TestScannerCallsNoOthersJobByTheFolder(t *testing.T) {
	r, dir := scannerAt(t)
	r.userPaths = job.Paths{Runtime: filepath.Join(dir, "run"), Temp: filepath.Join(dir, "tmp"), Proc: filepath.Join(dir, "proc"), Home: func(int) string { return "" }}
	r.allUsers = func() bool { return true }
	own, other := unix.Geteuid(), unix.Geteuid()+61000
	for _, uid := range []int{own, other} { // the regions of both folders are this user's
		folder := filepath.Join(r.userPaths.Runtime, fmt.Sprint(uid), "ration", "train")
		expect.OK(t, os.MkdirAll(folder, 0o700))
		reg, err := region.Open(filepath.Join(folder, job.RegionName), region.Options{})
		expect.OK(t, err)
		defer reg.Close()
		if _, err := reg.Claim("member"); err != nil {
			t.Fatal(err)
		}
	}
	m, _ := mustScan(t, r)
	for uid, name := range map[int]string{own: "train", other: ""} {
		path := filepath.Join(r.userPaths.Runtime, fmt.Sprint(uid), "ration", "train", job.RegionName)
		at := slices.IndexFunc(m.Jobs, func(j Job) bool { return j.Path == path })
		expect.True(t, at >= 0 && m.Jobs[at].Name == name && m.Jobs[at].UID == own, "want", name, "of user", own, "at", path, m.Jobs)
	}
}
