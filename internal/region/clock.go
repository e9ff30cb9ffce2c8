package region

import (
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// clockApart is the distance in nanoseconds below which two clocks are the same clock: the machine
// was not booted twice in it, and setting the time of day by less than this changes nothing.
const clockApart = 2_000_000_000

// Monotonic returns the clock of all times in a region, in nanoseconds: the machine's monotonic
// clock, also in a process that has another one because it is in a time namespace.
func Monotonic() uint64 { return clockRead(unix.CLOCK_MONOTONIC) - clockShift() }

// clockShift is the offset of this process's time namespace, in nanoseconds modulo 2^64; 0 if it is
// in the first one, or if that cannot be found out.
var clockShift = sync.OnceValue(func() uint64 {
	here, err := os.Readlink("/proc/self/ns/time")
	// The file has the offset of the namespace that children will be in.
	children, err2 := os.Readlink("/proc/self/ns/time_for_children")
	text, err3 := os.ReadFile("/proc/self/timens_offsets")
	if err != nil || err2 != nil || err3 != nil || here != children {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		var seconds, nanoseconds int64
		if n, _ := fmt.Sscanf(line, "monotonic %d %d", &seconds, &nanoseconds); n == 2 {
			return uint64(seconds*1_000_000_000 + nanoseconds)
		}
	}
	return 0
})

// clockZero returns the Unix time at which the machine's monotonic clock was zero, in nanoseconds.
func clockZero() uint64 {
	var before, wall uint64
	for range 100 {
		before, wall = Monotonic(), clockRead(unix.CLOCK_REALTIME)
		if Monotonic()-before <= clockApart/4 { // otherwise it lost the processor in between
			break
		}
	}
	return max(wall-before, 1)
}

// sameClock reports whether two clocks that were zero at these Unix times are one.
func sameClock(zero, other uint64) bool { return zero-other+clockApart < 2*clockApart }

func clockRead(id int32) uint64 {
	var t unix.Timespec
	if err := unix.ClockGettime(id, &t); err != nil {
		return 0
	}
	return uint64(t.Nano())
}
