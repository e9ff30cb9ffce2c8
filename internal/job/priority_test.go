package job

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
)

// TestPriorityFlood checks that a process is named that holds very many locks on the file of
// priorities, and none that holds a few.
func TestPriorityFlood(t *testing.T) {
	path := filepath.Join(t.TempDir(), PriorityFile)
	if pid, locks, err := PriorityFlood(path); pid != 0 || locks != 0 || err != nil {
		t.Errorf("without a file: PID %d, %d locks, %v", pid, locks, err)
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
		pid, locks, err := PriorityFlood(path)
		expect.OK(t, err)
		// The kernel's list is read in parts: while other processes lock files, a lock may be in two of them, or in none.
		many := i > 99
		expect.True(t, many == (pid == os.Getpid()) && many == (locks > manyPriorityLocks), "with", i+1, "locks of this process", os.Getpid(), "PID", pid, locks, "locks")
	}
}
