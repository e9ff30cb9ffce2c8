package region

import (
	"bytes"
	"errors"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/budget"
)

// The kernel names the holder of a lock by the PID of the process that took it. The lock
// belongs to that process's table of descriptors, though, and can outlive it: a child that
// shares the table (CLONE_FILES) keeps it, and the PID may be given to any other process
// meanwhile. So the process is asked for as well: the kernel lists the locks of a
// descriptor only where the table it is in has them (/proc/PID/fdinfo).

// A tenant can make each of these questions slow: with a million locks on the file, which the
// kernel walks for each, with a hundred thousand descriptors of it, with ten thousand threads
// (the kernel adds them up for /proc/PID/stat). So a process is looked into once for each copy,
// however many slots it has; of what it has, a bounded part is read; and no question is begun
// once the budget is spent. What is not confirmed then stays a claim.

const (
	maxHolderLooks  = 16384 // descriptors looked at for one copy of a region, of all processes
	maxHolderFDs    = 256   // of one process, beside those of the library
	maxHolderRanges = 2048  // locks kept of one process: twice as many as there are slots
)

// holderBudget is how long the kernel is asked for the holders of one file's locks, unless the
// caller sets another budget.
const holderBudget = 200 * time.Millisecond

// libration.so has its descriptor of the region at one of the first numbers from
// FILE_LOWEST_FD in shim/region/file.c on, so these are looked at first.
const libraryFD, libraryFDs = 56, 3

// holders finds out which processes hold locks on one file.
type holders struct {
	f          *file
	looks      int                  // left
	found      map[int]*lockHolding // by PID
	clock      budget.Clock         // zero: the machine's
	own        budget.Budget        // holderBudget of it
	budgetLeft func() bool          // counts instead, if a caller has set it
	into       int                  // processes looked into, for tests
}

// lockHolding is what one process has locked of the file.
type lockHolding struct {
	ranges  []lockRange
	scanned bool // its descriptors beside the library's were looked at
	full    bool // more is not looked at: a list was longer than is read, or there are too many locks
}

func (l *lockHolding) has(at int64) bool {
	return slices.ContainsFunc(l.ranges, func(r lockRange) bool { return r.from <= at && at <= r.to })
}

// lockRange is the first and the last byte of a lock.
type lockRange struct{ from, to int64 }

func (h *holders) reset() {
	h.looks = maxHolderLooks
	h.forget()
}

// forget lets what processes have locked be read anew.
func (h *holders) forget() {
	h.found = map[int]*lockHolding{}
	h.begin()
}

// begin gives a new budget.
func (h *holders) begin() {
	clock := h.clock
	if clock.Now == nil {
		clock = budget.Real
	}
	h.own = clock.For(holderBudget)
}

// left reports whether the budget allows another question to the kernel.
func (h *holders) left() bool {
	if h.budgetLeft != nil {
		return h.budgetLeft()
	}
	return h.own.Left()
}

// has reports whether a process has a lock on a byte of the file, by the kernel's word on
// its descriptors. What cannot be read, or not in time, is no proof.
//
// The answer is of the first time that the process was asked for since forget. A caller that
// asks who the process is does so before it forgets and asks again.
func (h *holders) has(pid int, at int64) bool {
	if pid <= 0 || h.f == nil || !self().sees {
		return false
	}
	known := h.found[pid]
	if known != nil && (known.has(at) || known.scanned || known.full) {
		return known.has(at)
	}
	if !h.left() {
		return false
	}
	// By one descriptor of its folder: it stays that process's when the PID is another's.
	dir, err := unix.Open("/proc/"+strconv.Itoa(pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(dir)
	h.into++
	if known == nil {
		known = &lockHolding{}
		h.found[pid] = known
		for fd := libraryFD; fd < libraryFD+libraryFDs && !known.has(at); fd++ {
			h.addLocks(dir, fd, pid, known)
		}
	}
	if !known.has(at) && !known.full {
		h.scan(dir, pid, known)
	}
	return known.has(at)
}

// scan adds what a process has locked of the file by its descriptors.
func (h *holders) scan(dir, pid int, known *lockHolding) {
	known.scanned = true
	fd, err := unix.Openat(dir, "fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	list := os.NewFile(uintptr(fd), "fd")
	defer list.Close()
	for looked := 0; looked < maxHolderFDs; {
		names, err := list.Readdirnames(min(64, maxHolderFDs-looked))
		for _, name := range names {
			looked++
			n, err := strconv.Atoi(name)
			if err != nil {
				continue
			}
			if known.full || h.looks <= 0 || !h.left() {
				return
			}
			h.addLocks(dir, n, pid, known)
		}
		if err != nil {
			return
		}
	}
}

// addLocks adds the locks that a descriptor of a process lists, if it is of the file.
func (h *holders) addLocks(dir, fd, pid int, known *lockHolding) {
	if h.looks--; h.looks < 0 {
		return
	}
	// Without asking the file's own system, which may be one of the tenant's and never answer.
	var st unix.Statx_t
	const want = unix.STATX_INO
	if unix.Statx(dir, "fd/"+strconv.Itoa(fd), unix.AT_STATX_DONT_SYNC, want, &st) != nil || st.Mask&want == 0 ||
		(inode{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino}) != h.f.key {
		return
	}
	text, err := readAt(dir, "fdinfo/"+strconv.Itoa(fd), maxFDInfo)
	if err != nil {
		return
	}
	known.add(listedLocks(text, pid))
	// Another descriptor would list the same, or as many.
	known.full = known.full || len(text) == maxFDInfo
}

// add keeps locks, up to as many as are kept.
func (l *lockHolding) add(more []lockRange) {
	if room := maxHolderRanges - len(l.ranges); len(more) >= room {
		more, l.full = more[:room], true
	}
	l.ranges = append(l.ranges, more...)
}

// maxFDInfo is how much is read of what the kernel says of a descriptor. A process that has
// all slots of a region has a line for each.
const maxFDInfo = 128 << 10

// readAt reads a file in a folder, so many bytes at most.
func readAt(dir int, name string, most int64) ([]byte, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, most))
}

// listedLocks returns the record locks for writing that a process took, of those that the
// kernel lists for a descriptor:
//
//	lock:	1: POSIX  ADVISORY  WRITE 4711 00:19:1042 20480 20480
//
// The kernel lists a lock with the descriptor by which it was taken, and only in the table
// of descriptors that it belongs to.
func listedLocks(fdinfo []byte, pid int) (out []lockRange) {
	by := strconv.Itoa(pid)
	for line := range bytes.Lines(fdinfo) {
		rest, is := bytes.CutPrefix(line, []byte("lock:"))
		if !is {
			continue
		}
		field := bytes.Fields(rest)
		if len(field) != 8 || string(field[1]) != "POSIX" || string(field[3]) != "WRITE" || string(field[4]) != by {
			continue
		}
		from, err := strconv.ParseInt(string(field[6]), 10, 64)
		to := int64(math.MaxInt64)
		if string(field[7]) != "EOF" {
			var e error
			to, e = strconv.ParseInt(string(field[7]), 10, 64)
			err = errors.Join(err, e)
		}
		if err == nil {
			out = append(out, lockRange{from, to})
		}
	}
	return out
}
