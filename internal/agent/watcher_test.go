package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"ration/check/expect"
	"ration/internal/job"
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

// Whoever makes files without pause is not listened to for a while; the others are.
func TestFlood(t *testing.T) {
	w, hints, dirs := watcherOf(t, 2)
	noisy, quiet := dirs[0], dirs[1]
	w.set([]string{noisy, quiet}, nil, nil)
	<-hints
	<-hints // both are watched
	for i := range 2 * maxWatchEvents {
		expect.OK(t, os.WriteFile(filepath.Join(noisy, fmt.Sprint(i)), nil, 0o600))
	}
	go w.run()
	expect.OK(t, os.WriteFile(filepath.Join(quiet, "one"), nil, 0o600))
	for <-hints != quiet {
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, watched := w.watched[noisy]
	expect.True(t, !watched, "the noisy folder is watched")
	_, watched = w.watched[quiet]
	expect.True(t, watched, "the quiet folder is not watched")
}

// Where the kernel has lost events, each folder is worth a look: what was lost may be of any.
func TestLostEvents(t *testing.T) {
	w, hints, all := watcherOf(t, 3)
	folders := map[string]bool{}
	for _, f := range all {
		folders[f] = true
	}
	w.set(all, nil, nil)
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
	for len(folders) > 0 {
		delete(folders, <-hints)
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
	w.set(nil, []string{active, read}, []string{ended})
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
