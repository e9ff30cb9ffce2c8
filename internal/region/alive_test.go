package region

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"ration/internal/abi"
)

// A process that could not find out in which PID namespace it is judges no other
// one: a PID that it reads may be anybody's.
func TestAnUnsureProcessJudgesNobody(t *testing.T) {
	r := open(t, MiB)
	st := abi.MakeStatus(1, abi.SlotActive)
	entry := &abi.Slot{PID: 1 << 22, PIDNS: self().pidns + 1}
	if r.alive.dead(7, entry, st) != abi.CauseUnseen {
		t.Fatal("a process of another namespace without a lock counts as alive")
	}
	before := known.Load()
	defer known.Store(before)
	known.Store(&identity{pid: os.Getpid(), unsure: true})
	if r.alive.dead(7, entry, st) != 0 {
		t.Error("not to know one's own namespace was taken for an answer")
	}
}

func TestGone(t *testing.T) {
	if gone(os.Getpid()) {
		t.Error("this process is gone")
	}
	for _, pid := range []int{0, -1, 1 << 40} {
		if !gone(pid) {
			t.Errorf("there is a process %d", pid)
		}
	}
	if err := unix.Kill(1, 0); err == unix.ESRCH {
		t.Skip("no process 1 to be seen")
	}
	if gone(1) {
		t.Error("process 1 is gone")
	}
}
