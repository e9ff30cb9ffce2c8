package region

import (
	"bytes"
	"cmp"
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

// holders finds the descriptors by which processes hold locks on one file. What a process has
// locked is read once for all slots, until forget: one that has all slots would otherwise be
// asked for each of them, with an answer of a thousand lines each time.
type holders struct {
	f     *file
	looks int              // left
	found map[int]int      // by PID: the descriptor of the file that it was last found to have; -1 for none
	locks map[int]lockList // by PID: what it has locked
}

func (h *holders) reset() {
	h.looks, h.found, h.locks = maxHolderLooks, map[int]int{}, map[int]lockList{}
}

// forget lets what processes have locked be read anew.
func (h *holders) forget() { h.locks = map[int]lockList{} }

// has reports whether a process has a lock on a byte of the file, by the kernel's word on
// its descriptors. What cannot be read is no proof.
func (h *holders) has(pid int, at int64) bool {
	if pid <= 0 || h.f == nil || !self().sees {
		return false
	}
	list, known := h.locks[pid]
	if !known {
		list = h.read(pid, at)
		h.locks[pid] = list
	}
	return list.has(at)
}

// read returns what a process has locked, by a descriptor of it that has the byte locked, or
// that was found earlier.
func (h *holders) read(pid int, at int64) lockList {
	// By one descriptor of its folder: it stays that process's when the PID is another's.
	dir, err := unix.Open("/proc/"+strconv.Itoa(pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(dir)
	if fd, known := h.found[pid]; known {
		if fd < 0 {
			return nil
		}
		return h.lockedBy(dir, fd, pid)
	}
	for fd := libraryFD; fd < libraryFD+libraryFDs; fd++ {
		if list := h.lockedBy(dir, fd, pid); list.has(at) {
			h.found[pid] = fd
			return list
		}
	}
	fd, list := h.scan(dir, pid, at)
	h.found[pid] = fd
	return list
}

// scan looks at all descriptors of a process, and returns the one by which it has the byte
// locked, or -1.
func (h *holders) scan(dir, pid int, at int64) (int, lockList) {
	fd, err := unix.Openat(dir, "fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, nil
	}
	all := os.NewFile(uintptr(fd), "fd")
	defer all.Close()
	for h.looks > 0 {
		names, err := all.Readdirnames(64)
		for _, name := range names {
			if n, err := strconv.Atoi(name); err == nil {
				if list := h.lockedBy(dir, n, pid); list.has(at) {
					return n, list
				}
			}
		}
		if err != nil {
			return -1, nil
		}
	}
	return -1, nil
}

// lockedBy returns what a process has locked of the file by a descriptor: nothing where that is
// of another file.
func (h *holders) lockedBy(dir, fd, pid int) lockList {
	if h.looks--; h.looks < 0 {
		return nil
	}
	var st unix.Stat_t
	if unix.Fstatat(dir, "fd/"+strconv.Itoa(fd), &st, 0) != nil || keyOf(&st) != h.f.key {
		return nil
	}
	info, err := unix.Openat(dir, "fdinfo/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	file := os.NewFile(uintptr(info), "fdinfo")
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxFDInfo))
	if err != nil {
		return nil
	}
	return parseLockList(text, pid)
}

// maxFDInfo is how much is read of what the kernel says of a descriptor. A process that has
// all slots of a region has a line for each.
const maxFDInfo = 128 << 10

// lockList is ranges of bytes that a process has locked, from the first to the last of each, in
// their order.
type lockList []struct{ from, to int64 }

func (l lockList) has(at int64) bool {
	// Locks of one process do not overlap.
	i, exact := slices.BinarySearchFunc(l, at, func(r struct{ from, to int64 }, at int64) int { return cmp.Compare(r.from, at) })
	return exact || i > 0 && l[i-1].to >= at
}

// parseLockList takes the record locks for writing that a process took on the file from what the
// kernel says of a descriptor:
//
//	lock:	1: POSIX  ADVISORY  WRITE 4711 00:19:1042 20480 20480
func parseLockList(fdinfo []byte, pid int) (out lockList) {
	owner := strconv.Itoa(pid)
	for line := range bytes.Lines(fdinfo) {
		rest, is := bytes.CutPrefix(line, []byte("lock:"))
		field := bytes.Fields(rest)
		if !is || len(field) != 8 || string(field[1]) != "POSIX" || string(field[3]) != "WRITE" || string(field[4]) != owner {
			continue
		}
		from, err := strconv.ParseInt(string(field[6]), 10, 64)
		if err != nil {
			continue
		}
		to := int64(math.MaxInt64)
		if string(field[7]) != "EOF" {
			if to, err = strconv.ParseInt(string(field[7]), 10, 64); err != nil {
				continue
			}
		}
		out = append(out, struct{ from, to int64 }{from, to})
	}
	slices.SortFunc(out, func(a, b struct{ from, to int64 }) int { return cmp.Compare(a.from, b.from) })
	return out
}
