package cli

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/job"
	"ration/internal/region"
)

// memoryOf returns the most memory that a process has had, in KiB.
func memoryOf(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	expect.OK(t, err)
	field := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(text)
	expect.Must(t, field != nil, "no VmHWM of", pid)
	n, err := strconv.Atoi(string(field[1]))
	expect.OK(t, err)
	return n
}

// writeSparse writes a file without the pages that are zero.
func writeSparse(t *testing.T, path string, text []byte) {
	t.Helper()
	f, err := os.Create(path)
	expect.OK(t, err)
	defer f.Close()
	expect.OK(t, f.Truncate(int64(len(text))))
	zero, at := make([]byte, os.Getpagesize()), int64(0)
	for page := range slices.Chunk(text, len(zero)) {
		if !bytes.Equal(page, zero[:len(page)]) {
			_, err := f.WriteAt(page, at)
			expect.OK(t, err)
		}
		at += int64(len(page))
	}
}

// A user has 2,000 jobs, and opens and closes their regions without a pause, more than 240 times a second. Root's
// agent keeps to its memory, far below what its unit allows, and goes on.
func TestHostileOpens(t *testing.T) {
	slow(t)
	const (
		user, jobs = 64001, 2000
		most       = 384 << 10 // KiB; MemoryMax of the unit is 512 MiB
	)
	a := startRootsAgent(t, "split", "agent", "--listen", "none")
	reader, _ := a.reader()
	folder := fmt.Sprintf("/proc/%d/root/run/user/%d/ration", a.cmd.Process.Pid, user)
	expect.OK(t, os.MkdirAll(folder, 0o700))
	pattern := filepath.Join(t.TempDir(), job.RegionName)
	r, err := region.Open(pattern, region.Options{})
	expect.OK(t, err)
	r.Close()
	text, err := os.ReadFile(pattern)
	expect.OK(t, err)
	paths := make([]string, jobs)
	for i := range paths {
		dir := filepath.Join(folder, "job-"+strconv.Itoa(i))
		paths[i] = filepath.Join(dir, job.RegionName)
		expect.OK(t, os.Mkdir(dir, 0o700))
		writeSparse(t, paths[i], text)
		expect.OK(t, os.Chown(paths[i], user, user))
		expect.OK(t, os.Chown(dir, user, user))
	}
	expect.OK(t, os.Chown(folder, user, user))
	expect.OK(t, os.Chown(filepath.Dir(folder), user, user))
	opened, began := 0, time.Now()
	for ; time.Since(began) < 12*time.Second; opened++ {
		f, err := os.Open(paths[rand.IntN(jobs)])
		expect.OK(t, err)
		expect.OK(t, f.Close())
		time.Sleep(time.Millisecond)
	}
	rate := float64(opened) / time.Since(began).Seconds()
	got := memoryOf(t, reader) + memoryOf(t, a.cmd.Process.Pid)
	t.Logf("%.0f opens a second: %d MiB", rate, got>>10)
	expect.True(t, got < most || underRace, "the agent had", got>>10, "MiB") // the race detector takes some times as much
	expect.OK(t, a.cmd.Process.Signal(syscall.SIGTERM))
	expect.OK(t, a.cmd.Wait(), "the agent's end")
	seen := strings.Count(a.stderr.String(), "has started")
	expect.True(t, seen >= 100, "the agent has seen", seen, "jobs") // it logs 120 events of a user in a minute
	if rate < 120 {
		t.Skipf("this machine was too busy for an attack that opens more than 120 regions a second")
	}
}
