package region

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/abi"
)

// A process that could not find out in which PID namespace it is judges no other
// one: a PID that it reads may be anybody's.
func TestAnUnsureProcessJudgesNobody(t *testing.T) {
	r := open(t, MiB)
	st := abi.MakeStatus(1, abi.SlotActive)
	entry := &abi.Slot{PID: 1 << 22, PIDNS: self().pidns + 1}
	expect.Must(t, r.alive.dead(7, entry, st) == abi.CauseUnseen, "a process of another namespace without a lock counts as alive")
	before := known.Load()
	defer known.Store(before)
	known.Store(&identity{pid: os.Getpid(), unsure: true})
	expect.Equal(t, r.alive.dead(7, entry, st), 0, "not to know one's own namespace was taken for an answer")
}

func TestGone(t *testing.T) {
	expect.True(t, !gone(os.Getpid()), "this process is gone")
	for _, pid := range []int{0, -1, 1 << 40} {
		expect.True(t, gone(pid), "there is a process", pid)
	}
	if err := unix.Kill(1, 0); err == unix.ESRCH {
		t.Skip("no process 1 to be seen")
	}
	expect.True(t, !gone(1), "process 1 is gone")
}

// If the kernel does not answer, a slot counts as locked: its process is not taken for dead.
func TestLockThatCannotBeAskedFor(t *testing.T) {
	locked, _ := askedOf(-1, 0)
	expect.True(t, locked, "a lock that could not be asked for counts as released")
	closed := kernel{&file{fd: -1, path: filepath.Join(t.TempDir(), "none")}}
	locked, _ = closed.asked(0)
	expect.True(t, locked && closed.kept(0), "without the region's file, its locks count as released")
}
