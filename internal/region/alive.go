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
)

// A failure to ask is not an answer. Only what says so means that a process has
// gone: a free lock, ESRCH, another start time, a zombie. Whatever else goes wrong
// (no descriptor left, no permission, no memory), the process counts as alive.
//
// What a process holds goes back when the driver has freed it, which is when its open files
// of the driver are released: after the process's record locks have gone, before it is a
// zombie, and not while a fork child has those files, too.

// liveness says which processes live. The kernel answers, except in tests over a
// heap.
type liveness interface {
	// lock tries to mark slot as this process's, for as long as it lives.
	lock(slot int) (bool, error)
	unlock(slot int)
	// dead says how the owner of slot, which had status st, is known to have ended:
	// one of abi's causes, or 0 where it is not. entry describes it, unless it was
	// joining: then entry may be that of the owner before.
	dead(slot int, entry *abi.Slot, st abi.Status) (cause int)
	// holder is the PID, as this process sees it, of the process that has slot
	// locked: zero where none has, or where it is this process.
	holder(slot int) int
	// kept says whether an open file keeps what slot's owner held, which may have ended.
	kept(slot int) bool
	// outlived says whether only that keeps it: the owner, which had status st, has begun to
	// end, or has ended and fork children have its files; or it has lost its lock.
	outlived(slot int, st abi.Status) bool
	// blocker is the PID of a process that has slot locked so that lock fails, by a lock
	// for reading as well: zero where none has, or none that can be seen.
	blocker(slot int) int
}

// kernel keeps liveness as a record lock on the slot's first byte in the file.
type kernel struct{ f *file }

func slotByte(slot int, typ int16) unix.Flock_t {
	return unix.Flock_t{Type: typ, Whence: 0, Start: slotsOffset + int64(slot)*slotSize, Len: 1}
}

// filesByte is the slot's second byte. libration.so locks it by an open file that lives as
// long as the driver's do in a process and its fork children (region_keep in
// shim/region/alive.c). A process of this package uses no driver, and has no such lock.
func filesByte(slot int, typ int16) unix.Flock_t {
	l := slotByte(slot, typ)
	l.Start++
	return l
}

// fcntl sets or asks for the lock of a slot's byte.
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

// asked is the process that has a slot's byte locked. It is asked as a reader
// would, since a read-only open has no right to write.
func (k kernel) asked(slot int) (locked bool, pid int) {
	fd, err := k.f.descriptor()
	if err != nil {
		return true, 0
	}
	return askedOf(fd, slot)
}

// askedOf is asked of a descriptor that is known to be the file's.
func askedOf(fd, slot int) (locked bool, pid int) {
	l := slotByte(slot, unix.F_RDLCK)
	err := unix.FcntlFlock(uintptr(fd), unix.F_GETLK, &l)
	return err != nil || l.Type != unix.F_UNLCK, int(l.Pid)
}

// kept is asked after the first lock, which goes first.
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
		return 0 // ours, and the kernel does not name our own locks
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
	// No lock. It may have been lost by a close in a process that lives on, so ask
	// for the process as well, where its PID means anything to us.
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
	// No other process has our PID: this one had the slot before it became another
	// program, as exec drops the lock; or the PID has been given out again.
	if pid == me.pid {
		return abi.CauseExec
	}
	if gone(pid) {
		return abi.CauseEnded
	}
	if !me.sees {
		return 0 // /proc is of another namespace, and would describe another process
	}
	start := atomic.LoadUint64(&entry.Start)
	if cause, _ := ended(pid, start); cause != 0 || k.f.mappedBy(strconv.Itoa(pid), atomic.LoadUint64(&entry.UID)) {
		return cause
	}
	// Mappings go early in a process's end: one that has begun to end has not become
	// another program.
	if cause, p := ended(pid, start); cause != 0 || p.ending {
		return cause
	}
	return abi.CauseUnmapped
}

// ended says how a process that started then is known to have ended: one of abi's causes, or
// 0 where it is not, or still runs.
func ended(pid int, start uint64) (cause int, p process) {
	p, err := readProcess(strconv.Itoa(pid))
	switch {
	case err != nil && gone(pid):
		return abi.CauseEnded, p
	case err != nil:
	case start != 0 && p.start != start: // 0: the owner could not read its own
		return abi.CauseReused, p
	case p.ended:
		return abi.CauseZombie, p
	}
	return 0, p
}

// gone says whether no process has this PID. It needs no descriptor, and /proc may
// hide the processes of other users.
func gone(pid int) bool {
	return pid <= 0 || pid > math.MaxInt32 || errors.Is(unix.Kill(pid, 0), unix.ESRCH)
}

// mappedBy says whether a process has the region mapped. One that lost its lock
// by closing files still has; one that became another program does not. Where
// this cannot be read, it counts as mapped, but for a set-uid program.
func (f *file) mappedBy(pid string, uid uint64) bool {
	maps, err := os.Open("/proc/" + pid + "/maps")
	if errors.Is(err, unix.EACCES) && setUID(pid, uid) {
		return false
	}
	if err != nil {
		return true
	}
	defer maps.Close()
	// By device and inode; or, where a stacked file system shows others, by name.
	inode := fmt.Sprintf(" %02x:%02x %d ", unix.Major(f.key.dev), unix.Minor(f.key.dev), f.key.ino)
	return mentions(maps, []byte(inode), []byte(" "+f.path+"\n"))
}

// maxMaps is how much is read of a process's list of mappings. A large program's is a few
// hundred KiB; one can be made that takes minutes to read.
const maxMaps = 16 << 20

// mentions reports whether a list of mappings has one of the words in it, or is longer
// than is read, empty or unreadable: then that cannot be said.
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
		// A word may begin in this piece and end in the next.
		end := kept + n
		kept = min(end, maxPath)
		copy(buf, buf[end-kept:end])
	}
	return true
}

// maxPath bounds a line's path, and so a word.
const maxPath = unix.PathMax + 64

// setUID says whether a process of an ordinary user acts as another one, which it
// only can after exec of a set-uid program. Users have the same numbers for this
// process if its user namespace has the same map.
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

// identity names a process for good.
type identity struct {
	pid    int
	start  uint64 // clock ticks since boot; 0 where it cannot be read
	pidns  uint64 // inode of the PID namespace; 0 where there is no /proc
	unsure bool   // pidns could not be asked for
	sees   bool   // /proc is of this PID namespace
}

// initPIDNS is the inode of the first PID namespace, fixed by the kernel: a process
// in it sees the host's PIDs.
const initPIDNS = 0xEFFFFFFC

// OnHost says whether this process sees the host's PIDs.
func OnHost() bool { return self().pidns == initPIDNS }

var known atomic.Pointer[identity]

// self is this process. What could not be read is asked for again the next time.
func self() identity {
	if me := known.Load(); me != nil {
		return *me
	}
	me := identity{pid: os.Getpid()}
	// By "self", which is this process also where /proc is of another namespace and
	// our PID names another process.
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

// process is what /proc/PID/stat says of one.
type process struct {
	start  uint64 // clock ticks since boot
	ended  bool   // all its threads have ended, and its files have been released
	ending bool   // it has begun to end: it may have no mapping left, and the driver still its memory
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

// parseStat takes the fields it needs. The second field is a name in brackets
// that may hold anything, so count from the last bracket.
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
	// A leader that has ended while its other threads live on is no process that has.
	p.ended = (string(field[state]) == "Z" || string(field[state]) == "X") && number(threads) <= 1
	p.ending = number(flags)&exiting != 0
	return p, err
}
