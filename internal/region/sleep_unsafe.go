package region

import (
	"math"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The low half of a word is a futex that processes share, in both languages. All architectures that
// ration is built for are little-endian.

const (
	futexWaitOp = 0
	futexWakeOp = 1
)

// futexWait returns when a process has called futexWake, if the word has another low half than seen, or after
// most, and sometimes for no reason.
func futexWait(word *uint64, seen uint64, most time.Duration) {
	t := unix.NsecToTimespec(int64(most))
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWaitOp, uintptr(uint32(seen)), uintptr(unsafe.Pointer(&t)), 0, 0)
}

func futexWake(word *uint64) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWakeOp, math.MaxInt32, 0, 0, 0)
}
