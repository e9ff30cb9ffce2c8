package job

import (
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

// TestPriorityHidden checks that a process is named whose lock hides the claims of others, and none with a claim of its own.
func TestPriorityHidden(t *testing.T) {
	path := filepath.Join(t.TempDir(), PriorityFile)
	expect.OK(t, MakePriorityFile(filepath.Dir(path)))
	const seat, high = 1 << 32, 1 << 42
	now := time.Now().UnixMilli() % seat
	for name, c := range map[string]struct {
		command    int
		start, len int64
		want       int
	}{
		"a seat":                 {unix.F_SETLK, 5 * seat, 1, 0},
		"a claim":                {unix.F_SETLK, high + 5*seat, now + 10e3, 0},
		"with a detail":          {unix.F_SETLK, high + 5*seat + 100, now + 10e3, 0},
		"an old claim":           {unix.F_SETLK, high + 5*seat, now - 10e3, 0},
		"the whole file":         {unix.F_SETLK, 0, 0, os.Getpid()},
		"two seats":              {unix.F_SETLK, high + 5*seat, seat + 1, os.Getpid()},
		"late in a seat":         {unix.F_SETLK, high + 5*seat + 5000, 1, os.Getpid()},
		"for a day":              {unix.F_SETLK, high + 5*seat, (now + 86400e3) % seat, os.Getpid()},
		"a lock of an open file": {unix.F_OFD_SETLK, high + 5*seat, now + 10e3, -1},
	} {
		f, err := os.Open(path)
		expect.OK(t, err)
		expect.OK(t, unix.FcntlFlock(f.Fd(), c.command, &unix.Flock_t{Type: unix.F_RDLCK, Start: c.start, Len: c.len}))
		pid, holds, err := PriorityFlood(path)
		expect.True(t, err == nil && pid == c.want, name, "PID", pid, holds, err, "want", c.want)
		expect.OK(t, f.Close())
	}
}
