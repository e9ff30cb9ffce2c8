package region

import (
	"bytes"
	"fmt"
	"io"
	"os"
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

// holders finds the descriptors by which processes hold locks on one file.
type holders struct {
	f     *file
	looks int         // left
	found map[int]int // by PID: the descriptor of the file that it was last found to have
}

func (h *holders) reset() { h.looks, h.found = maxHolderLooks, map[int]int{} }

// has reports whether a process has a lock on a byte of the file, by the kernel's word on
// its descriptors. What cannot be read is no proof.
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
	if fd, known := h.found[pid]; known {
		return fd >= 0 && h.lockedBy(dir, fd, pid, at)
	}
	for fd := libraryFD; fd < libraryFD+libraryFDs; fd++ {
		if h.lockedBy(dir, fd, pid, at) {
			h.found[pid] = fd
			return true
		}
	}
	h.found[pid] = h.scan(dir, pid, at)
	return h.found[pid] >= 0
}

// scan looks at all descriptors of a process, and returns the one by which it has the lock,
// or -1.
func (h *holders) scan(dir, pid int, at int64) int {
	fd, err := unix.Openat(dir, "fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	list := os.NewFile(uintptr(fd), "fd")
	defer list.Close()
	for h.looks > 0 {
		names, err := list.Readdirnames(64)
		for _, name := range names {
			if n, err := strconv.Atoi(name); err == nil && h.lockedBy(dir, n, pid, at) {
				return n
			}
		}
		if err != nil {
			return -1
		}
	}
	return -1
}

// lockedBy reports whether a descriptor of a process is of the file, and has the lock.
func (h *holders) lockedBy(dir, fd, pid int, at int64) bool {
	if h.looks--; h.looks < 0 {
		return false
	}
	var st unix.Stat_t
	if unix.Fstatat(dir, "fd/"+strconv.Itoa(fd), &st, 0) != nil || keyOf(&st) != h.f.key {
		return false
	}
	info, err := unix.Openat(dir, "fdinfo/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	file := os.NewFile(uintptr(info), "fdinfo")
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxFDInfo))
	return err == nil && listsLock(text, pid, at)
}

// maxFDInfo is how much is read of what the kernel says of a descriptor. A process that has
// all slots of a region has a line for each.
const maxFDInfo = 128 << 10

// listsLock reports whether what the kernel says of a descriptor lists a record lock for
// writing that a process took on a byte of the file:
//
//	lock:	1: POSIX  ADVISORY  WRITE 4711 00:19:1042 20480 20480
func listsLock(fdinfo []byte, pid int, at int64) bool {
	for line := range bytes.Lines(fdinfo) {
		rest, is := bytes.CutPrefix(line, []byte("lock:"))
		field := bytes.Fields(rest)
		if !is || len(field) != 8 || string(field[1]) != "POSIX" || string(field[3]) != "WRITE" || string(field[4]) != strconv.Itoa(pid) {
			continue
		}
		var from, to int64
		if _, err := fmt.Sscan(string(field[6]), &from); err != nil || from > at {
			continue
		}
		if string(field[7]) == "EOF" {
			return true
		}
		if _, err := fmt.Sscan(string(field[7]), &to); err == nil && to >= at {
			return true
		}
	}
	return false
}
