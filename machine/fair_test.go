package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/job"
)

// stranger adds a user with so many idle jobs to a scanner. Each scan of it calls before.
func stranger(t *testing.T, r *scanner, uid, jobs int, before func()) *userScan {
	t.Helper()
	folder := t.TempDir()
	content := regionBytes(t)
	for i := range jobs {
		path := filepath.Join(folder, fmt.Sprint("idle-", i))
		expect.OK(t, os.Mkdir(path, 0o700))
		expect.OK(t, os.WriteFile(filepath.Join(path, job.RegionName), content, 0o600))
	}
	u := newUserScan(uid, fmt.Sprint("the folder of jobs of user ", uid), r.quotaOf(uid))
	u.setPaths(func() []string { before(); return []string{folder} }, nil)
	u.ended = r.opts.Ended
	r.users[uid] = u
	return u
}

// A user whose scan takes long does not delay what is published of others: the Scan returns without it, and
// the result comes later.
func TestScanWaitsForNoSlowUser(t *testing.T) {
	r, _ := scannerAt(t)
	ended := make(chan struct{}, 100)
	r.opts.Ended = func() { ended <- struct{}{} }
	r.early = time.Millisecond
	_, slot := member(t, "mine")
	gate := make(chan struct{}, 1)
	gate <- struct{}{}
	slow := stranger(t, r, 61000, 3, func() { <-gate })
	scan := func(all bool) *Machine {
		t.Helper()
		got, err := r.Scan(all)
		expect.OK(t, err)
		return got.Machine
	}
	expect.Equal(t, len(scan(true).Jobs), 4, "the first scan waits for all")
	used := func(m *Machine) (bytes uint64) {
		for _, d := range m.Jobs[0].Devices { // none before the first charge was read
			bytes += d.Used
		}
		return bytes
	}
	for want := uint64(1); want <= 3; want++ {
		expect.OK(t, slot.Charge(0, abi.Data, 1<<20))
		own := r.users[ownUser]
		m := scan(true) // the slow user's scan stands, from the first time on
		for used(m) != want<<20 {
			<-own.done // on a busy machine also this user's
			own.state.rested = time.Time{}
			for _, job := range own.state.jobs {
				job.due = time.Time{}
			}
			m = scan(true)
		}
		expect.True(t, slow.isScanning() && len(m.Jobs) == 4 && len(m.Findings) == 0, m.Findings)
	}
	expect.True(t, !r.Deferred().IsZero(), "the slow user is never found to be slow")
	r.timeout = 0
	expect.True(t, slices.ContainsFunc(scan(true).Findings, func(f Finding) bool { return strings.Contains(f.Text, "61000") }), "the slow user is not named")
	r.timeout = time.Minute
	for len(ended) > 0 {
		<-ended // of this user, on a busy machine
	}
	gate <- struct{}{}
	<-slow.done
	<-ended
	expect.Equal(t, len(scan(false).Findings), 0)
}

// A hint costs a scan of its own user only, however many jobs another has, and a Scan without any work costs
// none.
func TestHintScansItsUserOnly(t *testing.T) {
	r, dir := scannerAt(t)
	member(t, "mine")
	var scans atomic.Int32
	u := stranger(t, r, 61000, 20, func() { scans.Add(1) })
	reads := func() (n int) {
		for _, j := range u.state.jobs {
			n += j.reads
		}
		return n
	}
	mustScan(t, r)
	before, read := scans.Load(), reads()
	for range 50 {
		r.Hint(filepath.Join(dir, "mine"))
		_, _, err := r.scan(false)
		expect.OK(t, err)
		_, _, err = r.scan(false)
		expect.OK(t, err)
	}
	expect.True(t, scans.Load() == before && reads() == read, scans.Load()-before, "scans and", reads()-read, "reads of the other user")
	r.Hint(filepath.Join(u.last.bases[0], "idle-7"))
	_, _, err := r.scan(false)
	expect.OK(t, err)
	expect.Equal(t, scans.Load(), before+1, "its own hint was not for it")
}

// The users of one account have one part of the processor's time, and users that have used up theirs share
// it.
func TestAccountsShareTime(t *testing.T) {
	now := time.Now()
	q, other := &quota{}, &quota{}
	first, second := userState{quota: q}, userState{quota: q}
	cost := time.Second
	first.cost = func() time.Duration { return cost }
	first.rest(0)
	second.waitForAccount()
	least := restShare * (cost - scanAhead)
	expect.True(t, second.rested.Sub(now) >= least && second.rested.Equal(first.rested), "the second rests", second.rested.Sub(now))
	other.scans = now.Add(time.Hour)
	divideQuotas(map[int]*quota{1: q, 2: other}, now)
	before := q.scans
	first.rest(0)
	expect.Equal(t, q.scans.Sub(before), 2*restShare*cost)
	expect.True(t, other.most() == used{userRows, userTexts}, other.most())
	divideQuotas(map[int]*quota{1: q, 2: other, 3: {}, 4: {}, 5: {}, 6: {}, 7: {}, 8: {}, 9: {}, 10: {}, 11: {}, 12: {}, 13: {}, 14: {}, 15: {}, 16: {}}, now)
	expect.True(t, other.most() == used{userRows / 2, userTexts / 2}, other.most())
}

// A job that has not changed is found to be the same by its version, and one that has is not.
func TestSameByVersion(t *testing.T) {
	r, _ := scannerAt(t)
	_, slot := member(t, "mine")
	before, _ := mustScan(t, r)
	again := before.Clone()
	expect.True(t, before.Jobs[0].version != 0 && again.Jobs[0].Same(&before.Jobs[0]), "a clone differs")
	again.Jobs[0].Processes[0].Holdings = append(again.Jobs[0].Processes[0].Holdings, Holding{Driver: 1})
	expect.True(t, !again.Jobs[0].Same(&before.Jobs[0]), "what the driver counts makes no difference")
	expect.OK(t, slot.Charge(0, abi.Data, 1<<20))
	for _, j := range r.users[ownUser].state.jobs {
		j.due = time.Time{}
	}
	after, _ := mustScan(t, r)
	expect.True(t, !after.Jobs[0].Same(&before.Jobs[0]), "a change makes no difference")
}
