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

// Whoever makes files without pause is not listened to for a while; the others are.
func TestFlood(t *testing.T) {
	dir := t.TempDir()
	hints := make(chan string, 4096)
	w, err := newWatcher(func(folder string) { hints <- folder })
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	noisy, quiet := filepath.Join(dir, "noisy"), filepath.Join(dir, "quiet")
	for _, f := range []string{noisy, quiet} {
		if err := os.Mkdir(f, 0o700); err != nil {
			t.Fatal(err)
		}
	}
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
	dir := t.TempDir()
	hints := make(chan string, 4096)
	w, err := newWatcher(func(folder string) { hints <- folder })
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	folders := map[string]bool{}
	var all []string
	for i := range 3 {
		f := filepath.Join(dir, fmt.Sprint(i))
		if err := os.Mkdir(f, 0o700); err != nil {
			t.Fatal(err)
		}
		folders[f], all = true, append(all, f)
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

// A process that joins or ends opens and closes the region, which is worth a look; where a job
// has ended the agent itself does that when it looks, and it is not.
func TestWatchesOpening(t *testing.T) {
	dir := t.TempDir()
	hints := make(chan string, 100)
	w, err := newWatcher(func(folder string) { hints <- folder })
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	active, ended := filepath.Join(dir, "active"), filepath.Join(dir, "ended")
	for _, f := range []string{active, ended} {
		if err := os.Mkdir(f, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{job.RegionName, "info"} {
			if err := os.WriteFile(filepath.Join(f, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.set(nil, []string{active}, []string{ended})
	<-hints
	<-hints
	go w.run()
	for _, path := range []string{ended + "/" + job.RegionName, active + "/info", active + "/" + job.RegionName} { // the last is worth a look
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
	}
	if got := <-hints; got != active {
		t.Errorf("got %s", got)
	}
	if err := os.Remove(filepath.Join(ended, "info")); err != nil {
		t.Fatal(err)
	}
	for <-hints != ended {
	}
}

// FuzzParseInotify: what is read has the size that it says.
func FuzzParseInotify(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 'a', 0, 0, 0})
	f.Add(make([]byte, 15))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, e := range parseInotify(text) {
			if len(e.name) > len(text) {
				t.Errorf("%q", e.name)
			}
		}
	})
}
