package job

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
)

// TestPriorityFlood checks that a process is named that holds very many locks on the file of
// priorities, and none that holds a few.
func TestPriorityFlood(t *testing.T) {
	path := filepath.Join(t.TempDir(), PriorityFile)
	if pid, holds, err := PriorityFlood(path); pid != 0 || holds != "" || err != nil {
		t.Errorf("without a file: PID %d, %s, %v", pid, holds, err)
	}
	if err := MakePriorityFile(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	expect.OK(t, err)
	defer f.Close()
	for i := range manyPriorityLocks + 10 {
		if err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_RDLCK, Start: int64(i) * 2, Len: 1}); err != nil {
			t.Fatal(err)
		}
		if i != 99 && i != manyPriorityLocks+9 {
			continue
		}
		pid, holds, err := PriorityFlood(path)
		expect.OK(t, err)
		// The kernel's list is read in parts: while other processes lock files, a lock may be in two of them, or in none.
		many := i > 99
		expect.True(t, many == (pid == os.Getpid()) && many == strings.HasSuffix(holds, " locks"), "with", i+1, "locks of this process", os.Getpid(), "PID", pid, holds)
	}
}

// TestPriorityHidden checks that a process is named whose lock hides the claims of others, and none that has a seat.
func TestPriorityHidden(t *testing.T) {
	path := filepath.Join(t.TempDir(), PriorityFile)
	expect.OK(t, MakePriorityFile(filepath.Dir(path)))
	for name, c := range map[string]struct {
		command    int
		start, len int64
		want       int
	}{
		"a seat":                 {unix.F_SETLK, 5 << 32, 1, 0},
		"the whole file":         {unix.F_SETLK, 0, 0, os.Getpid()},
		"a lock of an open file": {unix.F_OFD_SETLK, 5 << 32, 1, -1},
	} {
		f, err := os.Open(path)
		expect.OK(t, err)
		expect.OK(t, unix.FcntlFlock(f.Fd(), c.command, &unix.Flock_t{Type: unix.F_RDLCK, Start: c.start, Len: c.len}))
		pid, holds, err := PriorityFlood(path)
		expect.True(t, err == nil && pid == c.want, name, "PID", pid, holds, err, "want", c.want)
		expect.OK(t, f.Close())
	}
}

// TestHidesPriorities checks which locks the library cannot have made.
func TestHidesPriorities(t *testing.T) {
	const seat, high, now = 1 << 32, 1<<42 + 5<<32, 3_000_000_000
	for name, c := range map[string]struct {
		from, bytes int64
		want        bool
	}{
		"a seat":         {5 * seat, 1, false},
		"a claim":        {high, now + 10e3, false},
		"with a detail":  {high + 100, now + 10e3, false},
		"an old claim":   {high, now - 10e3, false},
		"two seats":      {high, seat + now + 10e3, true},
		"late in a seat": {high + 5000, now + 5e3, true},
		"for two hours":  {high, now + 7200e3, true},
	} {
		got := hidesPriorities("POSIX", fmt.Sprint(c.from), fmt.Sprint(c.from+c.bytes-1), time.UnixMilli(417*seat+now))
		expect.Equal(t, got, c.want, name)
	}
}
