package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"ration/internal/job"
)

// watcherOf returns a watcher that does not run yet, what it hints at, and so many folders.
func watcherOf(t *testing.T, folders int) (w *watcher, hints chan string, dirs []string) {
	t.Helper()
	hints = make(chan string, 4096)
	w, err := newWatcher(func(folder string) { hints <- folder })
	if err != nil {
		t.Fatal(err)
	}
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
		if err := os.WriteFile(filepath.Join(noisy, fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	go w.run()
	if err := os.WriteFile(filepath.Join(quiet, "one"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for <-hints != quiet {
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, watched := w.watched[noisy]; watched {
		t.Error("the noisy folder is watched")
	}
	if _, watched := w.watched[quiet]; !watched {
		t.Error("the quiet folder is not watched")
	}
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
	if err != nil {
		t.Fatal(err)
	}
	most, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	// All in one folder, and nothing reads them yet.
	from, to := filepath.Join(all[0], "a"), filepath.Join(all[0], "b")
	if err := os.WriteFile(from, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range most/2 + 1 { // each is two events
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
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
			if err := os.WriteFile(filepath.Join(f, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	region, err := os.Open(filepath.Join(read, job.RegionName)) // as the agent keeps it
	if err != nil {
		t.Fatal(err)
	}
	w.set(nil, []string{active, read}, []string{ended})
	for range dirs {
		<-hints
	}
	open := func(path string, flags int) {
		t.Helper()
		f, err := os.OpenFile(path, flags, 0)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	open(filepath.Join(ended, job.RegionName), os.O_RDWR)
	for _, name := range []string{"info", "alive"} {
		open(filepath.Join(read, name), os.O_RDONLY)
	}
	region.Close()
	open(filepath.Join(active, job.RegionName), os.O_RDONLY)
	go w.run()
	if got := <-hints; got != active {
		t.Errorf("got %s", got)
	}
	open(filepath.Join(read, "alive"), os.O_RDWR)
	for <-hints != read {
	}
	if err := os.Remove(filepath.Join(ended, "info")); err != nil {
		t.Fatal(err)
	}
	for <-hints != ended {
	}
}
