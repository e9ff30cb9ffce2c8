package region

import (
	"bytes"
	"errors"
	"io"
	"math"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// The kernel names the holder of a lock by the PID of the process that took it. The lock
// belongs to that process's table of descriptors, though, and can outlive it: a child that
// shares the table (CLONE_FILES) keeps it, and the PID may be given to any other process
// meanwhile. So the process is asked for as well: the kernel lists the locks of a
// descriptor only where the table it is in has them (/proc/PID/fdinfo).

// maxHolderLooks bounds how many descriptors are looked at for one copy of a region. A
// process of the job can have a million of them.
const maxHolderLooks = 16384

// libration.so has its descriptor of the region at one of the first numbers from
// FILE_LOWEST_FD in shim/region/file.c on, so these are looked at first.
const libraryFD, libraryFDs = 100, 3

// holders finds out which processes hold locks on one file.
type holders struct {
	f     *file
	looks int                 // left
	found map[int]lockHolding // by PID
}

// lockHolding is what one process has locked of the file.
type lockHolding struct {
	start    uint64 // of the process, which with its PID names it for good
	ranges   []lockRange
	complete bool // all of its descriptors were looked at
}

func (l lockHolding) has(at int64) bool {
	return slices.ContainsFunc(l.ranges, func(r lockRange) bool { return r.from <= at && at <= r.to })
}

// lockRange is the first and the last byte of a lock.
type lockRange struct{ from, to int64 }

func (h *holders) reset() { h.looks, h.found = maxHolderLooks, map[int]lockHolding{} }

// forget lets what processes have locked be read anew.
func (h *holders) forget() { h.found = map[int]lockHolding{} }

// has reports whether a process has a lock on a byte of the file, by the kernel's word on
// its descriptors. What cannot be read is no proof. A process is looked into once for each
// copy: it may have a lock on every slot.
func (h *holders) has(pid int, at int64) bool {
	if pid <= 0 || h.f == nil || !self().sees {
		return false
	}
	// By one descriptor of its folder: it stays that process's when the PID is another's.
	dir, err := unix.Open("/proc/"+strconv.Itoa(pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(dir)
	stat, err := readAt(dir, "stat", 1024)
	if err != nil {
		return false
	}
	p, err := parseStat(stat)
	if err != nil {
		return false
	}
	known, looked := h.found[pid]
	if !looked || known.start != p.start {
		known = lockHolding{start: p.start}
		for fd := libraryFD; fd < libraryFD+libraryFDs && !known.has(at); fd++ {
			known.ranges = append(known.ranges, h.locksBy(dir, fd, pid)...)
		}
	}
	if !known.has(at) && !known.complete {
		h.scan(dir, pid, at, &known)
	}
	h.found[pid] = known
	return known.has(at)
}

// scan adds what a process has locked of the file by its descriptors, up to the one by which
// it has a byte.
func (h *holders) scan(dir, pid int, at int64, known *lockHolding) {
	known.complete = true
	fd, err := unix.Openat(dir, "fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	list := os.NewFile(uintptr(fd), "fd")
	defer list.Close()
	for h.looks > 0 {
		names, err := list.Readdirnames(64)
		for _, name := range names {
			if n, err := strconv.Atoi(name); err == nil {
				known.ranges = append(known.ranges, h.locksBy(dir, n, pid)...)
			}
			if known.has(at) {
				known.complete = false
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// locksBy returns the locks that a descriptor of a process lists, if it is of the file.
func (h *holders) locksBy(dir, fd, pid int) []lockRange {
	if h.looks--; h.looks < 0 {
		return nil
	}
	var st unix.Stat_t
	if unix.Fstatat(dir, "fd/"+strconv.Itoa(fd), &st, 0) != nil || keyOf(&st) != h.f.key {
		return nil
	}
	text, err := readAt(dir, "fdinfo/"+strconv.Itoa(fd), maxFDInfo)
	if err != nil {
		return nil
	}
	return listedLocks(text, pid)
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
