package region

import (
	"errors"
	"os"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Inspector answers questions about another process for which the kernel wants the right to trace it. A
// process without that right has a parent that answers them (package privsep).
type Inspector interface {
	// OpenMaps opens the list of mappings of a process.
	OpenMaps(pid int) (*os.File, error)
	// Locks returns what a process has locked of a file; after it has found a lock on the byte at, or has
	// looked at so many descriptors, it looks no further.
	Locks(pid int, file FileKey, at int64, looks int) Locks
	// OpenRoot returns the root of a process that has a file open, and the file's path below that root.
	OpenRoot(pid int, file FileKey) (root int, path string, err error)
}

// FileKey identifies a file.
type FileKey struct {
	Dev uint64 `json:"dev"`
	Ino uint64 `json:"ino"`
}

// Locks are what a process has locked of a file.
type Locks struct {
	Ranges  [][2]int64 `json:"ranges,omitempty"`  // the first and the last byte of each
	Scanned bool       `json:"scanned,omitempty"` // all its descriptors were looked at
	Full    bool       `json:"full,omitempty"`    // more is not looked at
	Looks   int        `json:"looks,omitempty"`   // how many descriptors were looked at
}

// inspector answers instead of the kernel, where this process has not the right to ask.
var inspector atomic.Pointer[Inspector]

// InspectBy has another process answer from now on.
func InspectBy(i Inspector) { inspector.Store(&i) }

func inspect() Inspector {
	if i := inspector.Load(); i != nil {
		return *i
	}
	return Kernel{}
}

// OpenRoot returns the root of a process that has a file open, and the file's path below that root.
func OpenRoot(pid int, of FileKey) (root int, path string, err error) {
	return inspect().OpenRoot(pid, of)
}

// Kernel asks the kernel, as this process.
type Kernel struct{}

// OpenMaps opens the list of mappings of a process.
func (Kernel) OpenMaps(pid int) (*os.File, error) {
	return os.Open("/proc/" + strconv.Itoa(pid) + "/maps")
}

// Locks returns what a process has locked of a file.
func (Kernel) Locks(pid int, of FileKey, at int64, looks int) Locks {
	h := holders{f: &file{key: inode{of.Dev, of.Ino}}}
	h.forget()
	h.looks = min(max(looks, 0), maxHolderLooks)
	before := h.looks
	h.has(pid, at)
	out := Locks{Looks: before - max(h.looks, 0)}
	if known := h.found[pid]; known != nil {
		out.Scanned, out.Full = known.scanned, known.full
		for _, r := range known.ranges {
			out.Ranges = append(out.Ranges, [2]int64{r.from, r.to})
		}
	}
	return out
}

// HasLock reports whether a process itself has locked a part of a file for writing. A descriptor that another
// process has handed to it brings no such lock.
func (k Kernel) HasLock(pid int, of FileKey) bool {
	return len(k.Locks(pid, of, -1, maxHolderLooks).Ranges) > 0
}

// maxOpened is how many descriptors of a process are searched for a file.
const maxOpened = 4096

// OpenRoot returns the root of a process that has a file open, and the file's path. It asks no file system of
// the process: a tenant's own may never answer.
func (Kernel) OpenRoot(pid int, file FileKey) (root int, path string, err error) {
	// One descriptor of /proc/PID for all: it stays that process's when the PID becomes another's.
	process, err := unix.Open("/proc/"+strconv.Itoa(pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, "", err
	}
	defer unix.Close(process)
	if path, err = openedPath(process, file); err != nil {
		return -1, "", err
	}
	root, err = unix.Openat(process, "root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return root, path, err
}

// openedPath returns the path of a file, from the descriptors of a process.
func openedPath(process int, file FileKey) (string, error) {
	fd, err := unix.Openat(process, "fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	list := os.NewFile(uintptr(fd), "fd")
	defer list.Close()
	for looked := 0; looked < maxOpened; {
		some, err := list.Readdirnames(64)
		for _, name := range some {
			looked++
			var st unix.Statx_t
			if unix.Statx(fd, name, unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &st) != nil ||
				(FileKey{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino}) != file {
				continue
			}
			buf := make([]byte, unix.PathMax)
			n, err := unix.Readlinkat(fd, name, buf)
			return string(buf[:max(n, 0)]), err
		}
		if err != nil {
			break
		}
	}
	return "", errors.New("the process with the lock does not have the file open")
}

// locksBy returns what a process has locked of the file, by another process's answer.
func (h *holders) locksBy(i Inspector, pid int, at int64) *lockHolding {
	got := i.Locks(pid, FileKey{h.f.key.dev, h.f.key.ino}, at, h.looks)
	h.looks -= max(got.Looks, 1)
	known := &lockHolding{scanned: got.Scanned, full: got.Full}
	more := make([]lockRange, len(got.Ranges))
	for n, r := range got.Ranges {
		more[n] = lockRange{r[0], r[1]}
	}
	known.add(more)
	return known
}
