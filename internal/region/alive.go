package region

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"ration/internal/abi"
)

// liveness is what the region must know of processes. The kernel answers, except
// in tests over a heap.
type liveness interface {
	// lock tries to mark slot as this process's, for as long as it lives.
	lock(slot int) (bool, error)
	unlock(slot int)
	// dead says whether the owner of slot has ended. entry describes it, unless
	// it was still joining: then entry may be that of the owner before.
	dead(slot int, entry *abi.Slot, joining bool) bool
	// holder is the PID, as this process sees it, of whoever has slot locked: zero
	// where nobody has, or where it is this process.
	holder(slot int) int
}

// kernel keeps liveness as a record lock on the slot's first byte in the file.
type kernel struct{ f *file }

func slotByte(slot int, typ int16) unix.Flock_t {
	return unix.Flock_t{Type: typ, Whence: 0, Start: slotsOffset + int64(slot)*slotSize, Len: 1}
}

// fcntl sets or asks for the lock of a slot's byte.
func (k kernel) fcntl(slot, command int, typ int16) (unix.Flock_t, error) {
	l := slotByte(slot, typ)
	fd, err := k.f.descriptor()
	if err == nil {
		err = unix.FcntlFlock(uintptr(fd), command, &l)
	}
	return l, err
}

func (k kernel) lock(slot int) (bool, error) {
	_, err := k.fcntl(slot, unix.F_SETLK, unix.F_WRLCK)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EACCES):
		return false, nil
	}
	return false, fmt.Errorf("locking a byte of the region: %w (does its file system have record locks?)", err)
}

func (k kernel) unlock(slot int) { _, _ = k.fcntl(slot, unix.F_SETLK, unix.F_UNLCK) }

// asked is who has a slot's byte locked. It is asked as a reader would, since a
// view has no right to write.
func (k kernel) asked(slot int) (locked bool, pid int) {
	l, err := k.fcntl(slot, unix.F_GETLK, unix.F_RDLCK)
	return err != nil || l.Type != unix.F_UNLCK, int(l.Pid)
}

func (k kernel) holder(slot int) int {
	if locked, pid := k.asked(slot); locked {
		return pid
	}
	return 0
}

func (k kernel) dead(slot int, entry *abi.Slot, joining bool) bool {
	if k.f.held[slot].Load() {
		return false // ours, and the kernel does not name our own locks
	}
	if locked, _ := k.asked(slot); locked {
		return false
	}
	if joining {
		return true // the lock came before the claim, a moment ago
	}
	// No lock. It may have been lost by a close in a process that lives on, so ask
	// for the process as well, where its PID means anything to us.
	me := self()
	pid := int(atomic.LoadUint64(&entry.PID))
	if ns := atomic.LoadUint64(&entry.PIDNS); ns != me.pidns || ns == 0 {
		pid = abi.HostPID(atomic.LoadUint64(&entry.HostPID)).PID()
		if !OnHost() || pid == 0 {
			return true
		}
	}
	start := atomic.LoadUint64(&entry.Start)
	if pid == me.pid && start == me.start {
		return true // this process, before it became another program: exec drops the lock
	}
	now, state, err := startTime(pid)
	return err != nil || now != start || state == 'Z' || state == 'X' || !k.f.mappedBy(pid)
}

// mappedBy says whether a process has the region mapped. One that lost its lock
// by closing files still has; one that became another program does not. Where we
// may not look, it counts as mapped.
func (f *file) mappedBy(pid int) bool {
	maps, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/maps")
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	inode := " " + strconv.FormatUint(f.key.ino, 10) + " "
	return len(maps) == 0 || bytes.Contains(maps, []byte(inode)) || bytes.Contains(maps, []byte(f.path))
}

// identity names a process for good.
type identity struct {
	pid   int
	start uint64
	pidns uint64
}

// initPIDNS is the inode of the first PID namespace, fixed by the kernel: who is
// in it sees the host's PIDs.
const initPIDNS = 0xEFFFFFFC

// OnHost says whether this process sees the host's PIDs.
func OnHost() bool { return self().pidns == initPIDNS }

var self = sync.OnceValue(func() identity {
	me := identity{pid: os.Getpid()}
	me.start, _, _ = startTime(me.pid)
	var st unix.Stat_t
	if unix.Stat("/proc/self/ns/pid", &st) == nil {
		me.pidns = st.Ino
	}
	return me
})

// startTime reads from /proc when the process started, in clock ticks since
// boot, and its state.
func startTime(pid int) (start uint64, state byte, err error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, err
	}
	return parseStat(b)
}

// parseStat takes field 3 and field 22. The second field is a name in brackets
// that may hold anything, so count from the last bracket.
func parseStat(b []byte) (start uint64, state byte, err error) {
	at := bytes.LastIndexByte(b, ')')
	if at < 0 {
		return 0, 0, fmt.Errorf("reading a process's start time: no name in %q", b)
	}
	field := bytes.Fields(b[at+1:])
	if len(field) < 20 || len(field[0]) != 1 {
		return 0, 0, fmt.Errorf("reading a process's start time: %d fields", len(field))
	}
	start, err = strconv.ParseUint(string(field[19]), 10, 64)
	return start, field[0][0], err
}
