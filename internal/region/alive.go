package region

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"ration/internal/abi"
	"ration/internal/proc"
)

// A failed query is not an answer. Only positive evidence means that a process has ended: a free
// lock, ESRCH, another start time, a zombie. After any other error (no descriptor left, no
// permission, no memory) the process counts as alive.
//
// A process's memory is returned when the driver has freed it, which is when its open driver files
// are released: after its record locks are released, before it becomes a zombie, and not while a
// fork child also has those files.

// liveness finds out which processes are alive. The kernel does, except in tests over a heap.
type liveness interface {
	// lock tries to lock slot for this process. The lock lasts as long as the process.
	lock(slot int) (bool, error)
	unlock(slot int)
	// dead returns how the owner of slot, which had status st, is known to have ended: one of abi's
	// causes, or 0 if it is not. entry describes the owner, unless it was joining: then entry may
	// be that of the previous owner.
	dead(slot int, entry *abi.Slot, st abi.Status) (cause int)
	// holder returns the PID, as seen by this process, of the process that has locked slot. It
	// returns 0 if there is none, or if it is this process.
	holder(slot int) int
	// kept reports whether an open file keeps the memory of slot's owner, even if the owner has
	// ended.
	kept(slot int) bool
	// outlived reports whether only that file keeps the memory: the owner, which had status st, is
	// ending; or it has ended and fork children have its files; or it has lost its lock.
	outlived(slot int, st abi.Status) bool
	// blocker returns the PID of a process whose lock on slot, even a read lock, makes lock fail.
	// It returns 0 if there is none, or none is visible.
	blocker(slot int) int
}

// kernel uses a record lock on the slot's first byte in the file.
type kernel struct{ f *file }

func slotByte(slot int, typ int16) unix.Flock_t {
	return unix.Flock_t{Type: typ, Whence: 0, Start: slotsOffset + int64(slot)*slotSize, Len: 1}
}

// filesByte is the slot's second byte. libration.so locks it through an open file that lives as
// long as the driver's files, in a process and its fork children (region_keep in
// shim/region/alive.c). A process of this package uses no driver, and has no such lock.
func filesByte(slot int, typ int16) unix.Flock_t {
	l := slotByte(slot, typ)
	l.Start++
	return l
}

// fcntl sets or queries the lock of a slot's byte.
func (k kernel) fcntl(slot, command int, typ int16) (unix.Flock_t, error) {
	return k.fcntlOf(slotByte(slot, typ), command)
}

func (k kernel) fcntlOf(l unix.Flock_t, command int) (unix.Flock_t, error) {
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

// asked returns whether a slot's byte is locked, and by which process. It queries for a read lock,
// because a read-only descriptor may not ask for a write lock.
func (k kernel) asked(slot int) (locked bool, pid int) {
	fd, err := k.f.descriptor()
	if err != nil {
		return true, 0
	}
	return askedOf(fd, slot)
}

// askedOf is asked for a descriptor that is known to belong to the file.
func askedOf(fd, slot int) (locked bool, pid int) {
	l := slotByte(slot, unix.F_RDLCK)
	err := unix.FcntlFlock(uintptr(fd), unix.F_GETLK, &l)
	return err != nil || l.Type != unix.F_UNLCK, int(l.Pid)
}

// kept is called after the query for the first lock, because that lock is released first.
func (k kernel) kept(slot int) bool {
	l, err := k.fcntlOf(filesByte(slot, unix.F_RDLCK), unix.F_GETLK)
	return err != nil || l.Type != unix.F_UNLCK
}

func (k kernel) outlived(slot int, st abi.Status) bool {
	if st.State() != abi.SlotActive || k.f.held[slot].Load() == st.Gen() {
		return false
	}
	locked, _ := k.asked(slot)
	return !locked && k.kept(slot)
}

func (k kernel) holder(slot int) int {
	if locked, pid := k.asked(slot); locked {
		return pid
	}
	return 0
}

func (k kernel) blocker(slot int) int {
	l, err := k.fcntl(slot, unix.F_GETLK, unix.F_WRLCK)
	if err != nil || l.Type == unix.F_UNLCK {
		return 0
	}
	return int(l.Pid)
}

func (k kernel) dead(slot int, entry *abi.Slot, st abi.Status) (cause int) {
	if k.f.held[slot].Load() == st.Gen() {
		return 0 // it is our own lock, which the kernel does not report to us
	}
	if locked, _ := k.asked(slot); locked {
		return 0
	}
	if st.State() == abi.SlotJoining {
		return abi.CauseJoining // the lock came before the claim, a moment ago
	}
	if k.kept(slot) {
		return 0
	}
	// There is no lock. A living process may have lost it by closing a file. So check the process
	// as well, if its PID means anything here.
	me := self()
	if me.unsure {
		return 0
	}
	pid := int(atomic.LoadUint64(&entry.PID))
	if ns := atomic.LoadUint64(&entry.PIDNS); ns != me.pidns || ns == 0 {
		pid = abi.HostPID(atomic.LoadUint64(&entry.HostPID)).PID()
		if !OnHost() || pid == 0 {
			return abi.CauseUnseen
		}
	}
	// No other process has our PID. Either this process had the slot before it executed another
	// program, because exec drops the lock; or the PID was reused.
	if pid == me.pid {
		return abi.CauseExec
	}
	if gone(pid) {
		return abi.CauseEnded
	}
	if !me.sees {
		return 0 // /proc belongs to another namespace, and would describe another process
	}
	start := atomic.LoadUint64(&entry.Start)
	if cause, _ := ended(pid, start); cause != 0 || k.f.mappedBy(pid, atomic.LoadUint64(&entry.UID)) {
		return cause
	}
	// Mappings disappear early when a process ends: a process that is ending has not executed
	// another program.
	if cause, p := ended(pid, start); cause != 0 || p.ending {
		return cause
	}
	return abi.CauseUnmapped
}

// ended returns how a process with that start time is known to have ended: one of abi's causes, or
// 0 if that is unknown or the process still runs.
func ended(pid int, start uint64) (cause int, p process) {
	p, err := readProcess(strconv.Itoa(pid))
	switch {
	case err != nil && gone(pid):
		return abi.CauseEnded, p
	case err != nil:
	case start != 0 && p.start != start: // 0 means that the owner could not read its own start time
		return abi.CauseReused, p
	case p.ended:
		return abi.CauseZombie, p
	}
	return 0, p
}

// gone reports whether no process has this PID. It needs no descriptor, and works even if /proc
// hides the processes of other users.
func gone(pid int) bool {
	return pid <= 0 || pid > math.MaxInt32 || errors.Is(unix.Kill(pid, 0), unix.ESRCH)
}

// mappedBy reports whether a process has the region mapped. A process that lost its lock by closing
// files still has it mapped; one that executed another program does not. If the mappings cannot be
// read, or not in time, it returns true, except for a set-uid program.
func (f *file) mappedBy(pid int, uid uint64) bool {
	mapped, answered := proc.Ask(pid, func() bool { return f.listsMapping(pid, uid) }, nil)
	return mapped || !answered
}

// listsMapping is mappedBy, and may wait for as long as a tenant likes.
func (f *file) listsMapping(pid int, uid uint64) bool {
	maps, err := inspect().OpenMaps(pid)
	if errors.Is(err, unix.EACCES) && setUID(strconv.Itoa(pid), uid) {
		return false
	}
	if err != nil {
		return true
	}
	defer maps.Close()
	// Compare device and inode or, because a stacked file system may show others, the name.
	inode := fmt.Sprintf(" %02x:%02x %d ", unix.Major(f.key.dev), unix.Minor(f.key.dev), f.key.ino)
	return mentions(maps, []byte(inode), []byte(" "+f.path+"\n"))
}

// maxMaps bounds how much of a process's list of mappings is read. The list of a large program has
// a few hundred KiB, but a hostile one can take minutes to read.
const maxMaps = 16 << 20

// mentions reports whether a list of mappings contains one of the words. It also returns true if
// that is unknown, because the list is too long, empty or unreadable.
func mentions(maps io.Reader, words ...[]byte) bool {
	buf, kept, total := make([]byte, 64<<10), 0, 0
	for total < maxMaps {
		n, err := maps.Read(buf[kept:])
		total += n
		for _, word := range words {
			if bytes.Contains(buf[:kept+n], word) {
				return true
			}
		}
		if errors.Is(err, io.EOF) && n == 0 {
			return total == 0
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return true
		}
		// A word may begin in this part and end in the next.
		end := kept + n
		kept = min(end, maxPath)
		copy(buf, buf[end-kept:end])
	}
	return true
}

// maxPath bounds the path in a line, and so the length of a word.
const maxPath = unix.PathMax + 64

// setUID reports whether a process of an ordinary user acts as another user, which is only possible
// after it has executed a set-uid program. UIDs are comparable only if this process's user
// namespace has the same mapping.
func setUID(pid string, uid uint64) bool {
	theirs, err := os.ReadFile("/proc/" + pid + "/uid_map")
	ours, err2 := os.ReadFile("/proc/self/uid_map")
	status, err3 := os.ReadFile("/proc/" + pid + "/status")
	if uid == 0 || errors.Join(err, err2, err3) != nil || !bytes.Equal(theirs, ours) {
		return false
	}
	_, line, _ := bytes.Cut(status, []byte("\nUid:\t"))
	fields := bytes.Fields(line)
	if len(fields) < 2 {
		return false
	}
	effective, err := strconv.ParseUint(string(fields[1]), 10, 32)
	return err == nil && effective != uid
}

// identity identifies a process uniquely.
type identity struct {
	pid    int
	start  uint64 // clock ticks since boot; 0 if it cannot be read
	pidns  uint64 // inode of the PID namespace; 0 if there is no /proc
	unsure bool   // pidns could not be queried
	sees   bool   // /proc belongs to this PID namespace
}

// initPIDNS is the inode of the first PID namespace, a constant of the kernel. A process in it sees
// the host's PIDs.
const initPIDNS = 0xEFFFFFFC

// OnHost reports whether this process sees the host's PIDs.
func OnHost() bool { return self().pidns == initPIDNS }

var known atomic.Pointer[identity]

// self returns this process's identity. It queries again what it could not read the last time.
func self() identity {
	if me := known.Load(); me != nil {
		return *me
	}
	me := identity{pid: os.Getpid()}
	// Use "self", which means this process even if /proc belongs to another namespace where our PID
	// names another process.
	p, err := readProcess("self")
	me.start = p.start
	name, err2 := os.Readlink("/proc/self")
	me.sees = name == strconv.Itoa(me.pid)
	var st unix.Stat_t
	err3 := unix.Stat("/proc/self/ns/pid", &st)
	me.pidns, me.unsure = st.Ino, err3 != nil && !errors.Is(err3, unix.ENOENT)
	if errors.Join(err, err2, err3) == nil {
		known.Store(&me)
	}
	return me
}

// process is the content of /proc/PID/stat.
type process struct {
	start  uint64 // clock ticks since boot
	ended  bool   // all its threads have ended, and its files have been released
	ending bool   // it is ending: it may have no mapping left, while the driver still holds its memory
}

func readProcess(pid string) (process, error) {
	var buf [1024]byte
	fd, err := unix.Open("/proc/"+pid+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return process{}, err
	}
	defer func() { _ = unix.Close(fd) }()
	n, err := unix.Read(fd, buf[:])
	if err != nil {
		return process{}, err
	}
	return parseStat(buf[:n])
}

// parseStat parses the required fields. The second field is a name in brackets that may contain any
// character, so fields are counted from the last bracket.
func parseStat(b []byte) (p process, err error) {
	const state, flags, threads, start, exiting = 0, 6, 17, 19, 0x4
	at := bytes.LastIndexByte(b, ')')
	if at < 0 {
		return p, fmt.Errorf("reading a process's start time: no name in %q", b)
	}
	field := bytes.Fields(b[at+1:])
	if len(field) <= start {
		return p, fmt.Errorf("reading a process's start time: %d fields", len(field))
	}
	number := func(i int) (n uint64) {
		n, e := strconv.ParseUint(string(field[i]), 10, 64)
		err = errors.Join(err, e)
		return n
	}
	p.start = number(start)
	// A process whose leading thread has ended while other threads are alive has not ended.
	p.ended = (string(field[state]) == "Z" || string(field[state]) == "X") && number(threads) <= 1
	p.ending = number(flags)&exiting != 0
	return p, err
}
