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

	"ration/internal/safepath"
)

// The kernel reports the holder of a lock as the PID of the process that took it. But the lock
// belongs to that process's table of descriptors, and can outlive the process: a child that shares
// the table (CLONE_FILES) keeps it, and the PID may be reused. So the process is checked as well:
// the kernel lists the locks of a descriptor only in the table that has them (/proc/PID/fdinfo).

// A tenant can make each of these queries slow: with a million locks on the file, which the kernel
// walks for each query; with a hundred thousand descriptors of it; or with ten thousand threads
// (the kernel adds them up for /proc/PID/stat). So each process is inspected once for a copy,
// however many slots it has; a bounded part is read; and no query starts after the budget is used
// up. Anything that is not confirmed then stays a claim.

const (
	maxHolderLooks  = 16384 // descriptors inspected for one copy of a region, over all processes
	maxHolderFDs    = 256   // of one process, besides those of the library
	maxHolderRanges = 2048  // locks kept for one process: twice the number of slots
)

// holderBudget is the default time for querying the holders of one file's locks.
const holderBudget = 200 * time.Millisecond

// libration.so has its descriptor of the region at one of the first numbers from FILE_LOWEST_FD in
// shim/region/file.c on. So these are inspected first.
const libraryFD, libraryFDs = 56, 3

// holders finds the processes that hold locks on one file.
type holders struct {
	f          *file
	looks      int                  // descriptors left to inspect
	found      map[int]*lockHolding // by PID
	clock      safepath.Clock       // zero for the machine's clock
	own        safepath.Budget      // the default budget
	budgetLeft func() bool          // replaces the default if a caller has set it
	into       int                  // processes inspected, for tests
}

// lockHolding has the locks of one process on the file.
type lockHolding struct {
	ranges  []lockRange
	scanned bool // its descriptors besides the library's were inspected
	full    bool // no more is inspected: a list was too long, or there are too many locks
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

// forget discards the known locks, so that they are read again.
func (h *holders) forget() {
	h.found = map[int]*lockHolding{}
	h.begin()
}

// begin starts a new budget.
func (h *holders) begin() {
	clock := h.clock
	if clock.Now == nil {
		clock = safepath.RealClock
	}
	h.own = clock.For(holderBudget)
}

// left reports whether the budget allows another query.
func (h *holders) left() bool {
	if h.budgetLeft != nil {
		return h.budgetLeft()
	}
	return h.own.Left()
}

// has reports whether a process has a lock on a byte of the file, as the kernel lists for its
// descriptors. If the list cannot be read, or not in time, it returns false.
//
// The answer is that of the first query about this process since forget. A caller that also queries
// the process's identity must do so before it calls forget and has again.
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
	if i := inspector.Load(); i != nil {
		h.into++
		known = h.locksBy(*i, pid, at)
		h.found[pid] = known
		return known.has(at)
	}
	// Use one descriptor of its folder: it keeps referring to that process even if the PID is
	// reused.
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

// scan adds the locks that a process holds on the file through its descriptors.
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

// addLocks adds the locks that are listed for a descriptor of a process, if it is one of the file.
func (h *holders) addLocks(dir, fd, pid int, known *lockHolding) {
	if h.looks--; h.looks < 0 {
		return
	}
	// Do not query the file's own file system, which a tenant may provide, and which may never
	// respond.
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
	// Another descriptor would list the same locks, or as many.
	known.full = known.full || len(text) == maxFDInfo
}

// add adds locks, up to the bound.
func (l *lockHolding) add(more []lockRange) {
	if room := maxHolderRanges - len(l.ranges); len(more) >= room {
		more, l.full = more[:room], true
	}
	l.ranges = append(l.ranges, more...)
}

// maxFDInfo bounds how much of a descriptor's fdinfo is read. A process that has all slots of a
// region has a line for each.
const maxFDInfo = 128 << 10

// readAt reads at most most bytes of a file in a folder.
func readAt(dir int, name string, most int64) ([]byte, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, most))
}

// listedLocks returns the record locks for writing that a process took, from the kernel's list for
// a descriptor:
//
//	lock:	1: POSIX  ADVISORY  WRITE 4711 00:19:1042 20480 20480
//
// The kernel lists a lock with the descriptor through which it was taken, and only in the table of
// descriptors that it belongs to.
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
