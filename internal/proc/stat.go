package proc

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Stat is a part of /proc/PID/stat.
type Stat struct {
	State  byte
	Parent int           // PID
	CPU    time.Duration // time on processors, of all its threads
	Start  uint64        // clock ticks since boot; with the PID this identifies a process
	RSS    uint64        // bytes of the host's memory
}

// maxStat is more than the length of /proc/PID/stat: 52 fields.
const maxStat = 2048

// ReadStat reads /proc/PID/stat.
func ReadStat(pid int) (Stat, error) {
	text, err := readStart("/proc/"+strconv.Itoa(pid)+"/stat", maxStat)
	if err != nil {
		return Stat{}, err
	}
	s, err := parseStat(text)
	if err != nil {
		return Stat{}, fmt.Errorf("reading the state of process %d: %w", pid, err)
	}
	return s, nil
}

// parseStat parses the fields after the name, which may contain any character.
func parseStat(text []byte) (s Stat, err error) {
	const state, parent, user, system, start, rss = 0, 1, 11, 12, 19, 21
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) <= rss {
		return Stat{}, fmt.Errorf("%d fields", len(fields))
	}
	var numbers [rss + 1]uint64
	for _, i := range []int{parent, user, system, start, rss} {
		if numbers[i], err = strconv.ParseUint(string(fields[i]), 10, 63); err != nil {
			return Stat{}, err
		}
	}
	ticks := min(numbers[user]+numbers[system], maxTicks)
	return Stat{fields[state][0], int(numbers[parent]), time.Duration(ticks) * tick, numbers[start], numbers[rss] * uint64(os.Getpagesize())}, nil
}

// tick is the unit of /proc/PID/stat on every Linux that this program runs on.
const (
	tick     = 10 * time.Millisecond
	maxTicks = uint64(1<<63-1) / uint64(tick)
)

// Stopped reports whether a signal or a debugger has stopped the process.
func (s Stat) Stopped() bool { return s.State == 'T' || s.State == 't' }

// Age returns how long ago the process started.
func (s Stat) Age() time.Duration {
	return time.Duration(min(Now()-min(s.Start, Now()), maxTicks)) * tick
}

// Started returns when a process started, as Stat.Start.
func Started(pid int) (ticks uint64, err error) {
	s, err := ReadStat(pid)
	return s.Start, err
}

// Now returns the present time in the unit of Started.
func Now() (ticks uint64) {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) // cannot fail: the clock is there since Linux 2.6.39
	return uint64(now.Nano()) / uint64(tick)
}

// Parent returns the PID of a process's parent, or 0.
func Parent(pid int) int {
	s, _ := ReadStat(pid)
	return s.Parent
}

// Command returns the command line of a process, or as many of its arguments as fit most bytes. It returns nil if it
// cannot be read, or not in time. A process can change what is read here.
func Command(pid int, most int64) (arguments []string) {
	text, _ := Ask(pid, func() []byte {
		text, _ := readStart("/proc/"+strconv.Itoa(pid)+"/cmdline", most)
		return text
	}, nil)
	if text = bytes.TrimRight(text, "\x00"); len(text) == 0 {
		return nil
	}
	for _, argument := range bytes.Split(text, []byte{0}) {
		arguments = append(arguments, string(argument))
	}
	return arguments
}
