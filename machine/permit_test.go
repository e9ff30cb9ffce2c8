package machine

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/job"
)

// However many readers there are, a bounded number of looks is under way, each with a thread; and one that
// does not end keeps no other from its place.
func TestLooksTakePlaces(t *testing.T) {
	permits := make(chan struct{}, maxScans)
	var inside atomic.Int32
	entered, gate := make(chan struct{}, 1000), make(chan struct{})
	var all []*userScan
	for range 5 * maxScans {
		u := newUserScan(7, "a user", nil)
		u.setPaths(func() []string {
			inside.Add(1)
			entered <- struct{}{}
			<-gate
			inside.Add(-1)
			return nil
		}, nil)
		all = append(all, u)
		u.start(time.Now(), nil, bounds{1, 1}, true, permits)
	}
	for range maxScans {
		<-entered
	}
	for range 1000 {
		runtime.Gosched()
	}
	expect.Equal(t, inside.Load(), maxScans, "are under way")
	over := make(chan struct{})
	close(over)
	for _, u := range all { // nobody waits for these any more, whether they have a place or not
		u.wait(over, 0)
		expect.True(t, u.unanswering, "it has answered")
	}
	u := newUserScan(8, "another", nil)
	u.start(time.Now(), nil, bounds{1, 1}, true, permits)
	<-u.done
	close(gate)
	for _, u := range all {
		<-u.done
	}
	for range maxScans { // all are free again
		permits <- struct{}{}
	}
}

// A region outside the folders of jobs that was removed while a process has it locked is shown, and keeps
// no other of that user's from being looked at.
func TestScannerOfRemovedRegions(t *testing.T) {
	r, _ := scannerAt(t)
	r.allUsers, r.userPaths = func() bool { return true }, job.Paths{}
	var paths []string
	for range 3 {
		path := filepath.Join(t.TempDir(), job.RegionName)
		startHolders(t, path)
		if paths = append(paths, path); len(paths) < 3 {
			expect.OK(t, os.Remove(path))
		}
	}
	m, _ := mustScan(t, r)
	for i, path := range paths {
		at := slices.IndexFunc(m.Jobs, func(j Job) bool { return strings.HasPrefix(j.Path, path) })
		expect.True(t, at >= 0 && m.Jobs[at].State == Running && (m.Jobs[at].Error == "") == (i == 2), path, "is number", at, "of", m.Jobs)
	}
}

// A program that reads again and again has a few threads at most in a folder that does not respond. Reads that are not late
// do not count.
func TestReadsOfUserWhoDoesNotAnswer(t *testing.T) {
	const uid = 4_000_123
	var inside atomic.Int32
	hangs, over := make(chan struct{}), make(chan struct{})
	close(over)
	read := func() *userScan {
		u := newUserScan(uid, "it", nil)
		u.once, u.paths = true, func() []string {
			inside.Add(1)
			<-hangs
			return nil
		}
		u.start(time.Now(), nil, bounds{}, true, make(chan struct{}, 1))
		return u
	}
	together := []*userScan{read(), read(), read(), read(), read(), read()}
	for inside.Load() < int32(len(together)) {
		runtime.Gosched()
	}
	for _, u := range together[:mostLate] {
		u.wait(over, 0)
		u.wait(over, 0) // is no other read
		expect.True(t, u.unanswering, "it has answered")
	}
	last := read()
	late := make(chan struct{})
	defer time.AfterFunc(10*time.Second, func() { close(late) }).Stop()
	last.wait(late, time.Hour) // is not waited for
	expect.True(t, last.unanswering, "it has answered")
	expect.Equal(t, int(inside.Load()), len(together), "are under way")
	close(hangs)
	for _, u := range together {
		<-u.done
	}
	lateReads.Lock()
	defer lateReads.Unlock()
	expect.True(t, lateReads.of[uid] == nil, "some still count")
}
