package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/job"
	"ration/internal/safepath"
)

// watcherOf returns a watcher that does not run yet, what it hints at, and so many folders.
func watcherOf(t *testing.T, folders int) (w *watcher, hints chan string, dirs []string) {
	t.Helper()
	hints = make(chan string, 4096)
	w, err := newWatcher(func(folder string) { hints <- folder })
	expect.OK(t, err)
	t.Cleanup(w.close)
	for range folders {
		dirs = append(dirs, t.TempDir())
	}
	return w, hints, dirs
}

// If a user makes files without pause, in one folder or in many, the folders of that user are not watched for a while.
// Those of others are.
func TestFlood(t *testing.T) {
	w, hints, dirs := watcherOf(t, 3)
	noisy, other, quiet := dirs[0], dirs[1], dirs[2]
	w.set([]job.ScanFolders{{Account: 1, Active: []string{noisy, other}}, {Account: 2, Bases: []string{quiet}}})
	for range dirs {
		<-hints // all are watched
	}
	for i := range maxWatchEvents + 1 { // half of them in each folder
		expect.OK(t, os.WriteFile(filepath.Join(dirs[i%2], fmt.Sprint(i)), nil, 0o600))
	}
	go w.run()
	expect.OK(t, os.WriteFile(filepath.Join(quiet, "one"), nil, 0o600))
	for <-hints != quiet {
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, folder := range []string{noisy, other} {
		if _, watched := w.watched[folder]; watched {
			t.Errorf("%s of the noisy user is watched", folder)
		}
	}
	if _, watched := w.watched[quiet]; !watched {
		t.Error("the quiet folder is not watched")
	}
}

// However often regions are opened, one entry for each folder is kept, and no timer for each opening.
func TestOpeningsAreBounded(t *testing.T) {
	w, hints, dirs := watcherOf(t, 2)
	for _, folder := range dirs {
		expect.OK(t, os.WriteFile(filepath.Join(folder, job.RegionName), nil, 0o600))
	}
	w.set([]job.ScanFolders{{Account: 1, Active: dirs}})
	for range dirs {
		<-hints
	}
	w.sweeping = true // there is a timer, which does not end
	goroutines := runtime.NumGoroutine()
	for i := range 2000 {
		w.folderOf(safepath.WatchEvent{Watch: w.watched[dirs[i%2]], Mask: unix.IN_OPEN, Name: job.RegionName})
	}
	expect.True(t, len(w.opened) == len(dirs) && runtime.NumGoroutine() <= goroutines+2,
		len(w.opened), "folders", runtime.NumGoroutine()-goroutines, "goroutines more")
	for range joinTimes {
		for folder, o := range w.opened {
			o.at = time.Time{} // long ago
			w.opened[folder] = o
		}
		w.sweep()
		expect.True(t, len(hints) == len(dirs), len(hints), "hints at", len(dirs), "folders")
		for len(hints) > 0 {
			<-hints
		}
		w.sweeping = true
	}
	expect.True(t, len(w.opened) == 0, len(w.opened), "are left")
}

// Watches are divided: a user who has more folders than can be watched leaves enough for another.
func TestWatchesAreDivided(t *testing.T) {
	w, _, dirs := watcherOf(t, 1)
	many := make([]string, 2*maxWatches)
	for i := range many {
		many[i] = fmt.Sprint("/nonexistent/", i)
	}
	w.setting = true // add nothing
	w.set([]job.ScanFolders{{Account: 1, Active: many}, {Account: 2, Active: dirs}})
	if _, wanted := w.wanted[dirs[0]]; !wanted || len(w.wanted) != maxWatches {
		t.Errorf("of %d the other's is wanted: %v", len(w.wanted), wanted)
	}
}

// Where the kernel has lost events, each folder is worth a look: what was lost may be of any.
func TestLostEvents(t *testing.T) {
	w, hints, all := watcherOf(t, 3)
	folders := map[string]bool{}
	for _, f := range all {
		folders[f] = true
	}
	// Two accounts: after the pause of one that has too many events, all of its folders are worth a look anyway.
	w.set([]job.ScanFolders{{Account: 1, Bases: all[:1]}, {Account: 2, Bases: all[1:]}})
	for range all {
		<-hints // they are watched
	}
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	expect.OK(t, err)
	most, err := strconv.Atoi(strings.TrimSpace(string(text)))
	expect.OK(t, err)
	// All in one folder, and nothing reads them yet.
	from, to := filepath.Join(all[0], "a"), filepath.Join(all[0], "b")
	expect.OK(t, os.WriteFile(from, nil, 0o600))
	for range most/2 + 1 { // each is two events
		expect.OK(t, os.Rename(from, to))
		from, to = to, from
	}
	go w.run()
	for late := time.After(20 * time.Second); len(folders) > 0; {
		select {
		case folder := <-hints:
			delete(folders, folder)
		case <-late:
			t.Fatalf("events were lost, and %d folders are not worth a look", len(folders))
		}
	}
}

// A process that joins or ends opens and closes the region, which is worth a look. What the agent itself
// opens when it looks is not: in the folder of a job that has ended that is the region as well.
func TestWatchesOpening(t *testing.T) {
	w, hints, dirs := watcherOf(t, 3)
	active, ended, read := dirs[0], dirs[1], dirs[2]
	for _, f := range dirs {
		for _, name := range []string{job.RegionName, "info", "alive"} {
			expect.OK(t, os.WriteFile(filepath.Join(f, name), nil, 0o600))
		}
	}
	region, err := os.Open(filepath.Join(read, job.RegionName)) // as the agent keeps it
	expect.OK(t, err)
	w.set([]job.ScanFolders{{Active: []string{active, read}, Opened: []string{ended}}})
	for range dirs {
		<-hints
	}
	open := func(path string, flags int) {
		t.Helper()
		f, err := os.OpenFile(path, flags, 0)
		expect.OK(t, err)
		f.Close()
	}
	open(filepath.Join(ended, job.RegionName), os.O_RDWR)
	for _, name := range []string{"info", "alive"} {
		open(filepath.Join(read, name), os.O_RDONLY)
	}
	region.Close()
	open(filepath.Join(active, job.RegionName), os.O_RDONLY)
	go w.run()
	expect.Equal(t, <-hints, active)
	open(filepath.Join(read, "alive"), os.O_RDWR)
	for <-hints != read {
	}
	expect.OK(t, os.Remove(filepath.Join(ended, "info")))
	for <-hints != ended {
	}
}
