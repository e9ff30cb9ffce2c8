package region

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"ration/internal/abi"
	"ration/internal/safepath"
)

// file is this process's only descriptor of a region. Closing any descriptor of a file drops all
// record locks that the process holds on it, and with them its slots. So all Regions of one inode
// share one file, which is closed with the last of them.
type file struct {
	path     string
	writable bool

	mu sync.Mutex // guards fd, which the program may close although it did not open it
	fd int

	key   inode
	spare []int // opened by losing a race for the first open; closed with the rest
	users int

	// claim serialises the claims of this process, because record locks do not exclude threads of
	// one process. held has the locked slots, by generation.
	claim sync.Mutex
	held  [abi.Slots]atomic.Uint64
}

type inode struct{ dev, ino uint64 }

var files = struct {
	sync.Mutex
	open map[inode]*file
}{open: map[inode]*file{}}

// openFile opens path. It creates the file if create is set, and refuses files that cannot be a
// region.
func openFile(path string, writable, create bool, mode os.FileMode) (*file, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err == nil {
		if f := useOpen(keyOf(&st), writable); f != nil {
			return f, nil
		}
	}
	fd, err := openNoFollow(path, writable, create, mode)
	if err != nil {
		return nil, err
	}
	return adopt(fd, path, writable)
}

// openFileAt is openFile for reading an existing file, given a descriptor of its folder.
func openFileAt(dir int, name, path string) (*file, error) {
	var st unix.Stat_t
	if err := safepath.StatAt(dir, name, &st); err == nil {
		if f := useOpen(keyOf(&st), false); f != nil {
			return f, nil
		}
	}
	fd, err := safepath.OpenAt(dir, name, unix.O_RDONLY, 0)
	if err != nil {
		return nil, openError(path, err)
	}
	return adopt(fd, path, false)
}

// adopt makes a file from a descriptor that was just opened. It closes the descriptor on an error.
// While it holds the lock of all files, it makes no call that another user could slow down.
func adopt(fd int, path string, writable bool) (*file, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("looking at %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("opening region %s: %w (name a file, or a path where one can be made)", path, ErrNotRegular)
	}
	full, err := filepath.Abs(path) // the form that /proc shows
	if err != nil {
		full = path
	}
	files.Lock()
	defer files.Unlock()
	if f := files.open[keyOf(&st)]; f != nil { // opened since the first check, or only for reading
		f.spare, f.users = append(f.spare, fd), f.users+1
		if writable && !f.writable {
			f.mu.Lock()
			f.fd, f.spare[len(f.spare)-1], f.writable = fd, f.fd, true
			f.mu.Unlock()
		}
		return f, nil
	}
	f := &file{path: full, fd: fd, writable: writable, key: keyOf(&st), users: 1}
	files.open[f.key] = f
	return f, nil
}

// useOpen returns a file that this process has open already, or nil.
func useOpen(key inode, writable bool) *file {
	files.Lock()
	defer files.Unlock()
	f := files.open[key]
	if f == nil || writable && !f.writable {
		return nil
	}
	f.users++
	return f
}

func openNoFollow(path string, writable, create bool, mode os.FileMode) (int, error) {
	flags := unix.O_RDONLY
	if writable {
		flags |= unix.O_RDWR
	}
	if create {
		flags |= unix.O_CREAT
	}
	fd, err := safepath.Open(path, flags, uint32(mode.Perm()))
	if err != nil {
		return -1, openError(path, err)
	}
	return fd, nil
}

// openError explains why a file could not be opened.
func openError(path string, err error) error {
	switch {
	case errors.Is(err, unix.ELOOP):
		return fmt.Errorf("opening region %s: %w (name the file itself)", path, ErrSymlink)
	case errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENXIO):
		return fmt.Errorf("opening region %s: %w (name a file, or a path where one can be made)", path, ErrNotRegular)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("making region %s: %w (%v)", path, ErrNoSpace, err)
	case errors.Is(err, unix.EAGAIN):
		return fmt.Errorf("opening region %s: %w: a process holds a lease on it (end that process)", path, err)
	}
	return fmt.Errorf("opening region %s: %w", path, err)
}

func keyOf(st *unix.Stat_t) inode { return inode{uint64(st.Dev), st.Ino} }

func (f *file) close() {
	files.Lock()
	defer files.Unlock()
	if f.users--; f.users > 0 {
		return
	}
	delete(files.open, f.key)
	for _, fd := range append(f.spare, f.fd) {
		if f.is(fd) {
			_ = unix.Close(fd)
		}
	}
}

// is reports whether fd is a descriptor of this file. The number may belong to another file by now.
func (f *file) is(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && keyOf(&st) == f.key
}

// descriptor returns the file's descriptor, and opens it again if the program closed it. Querying
// locks on another file would make all processes look dead.
func (f *file) descriptor() (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.is(f.fd) {
		return f.fd, nil
	}
	fd, err := openNoFollow(f.path, f.writable, false, 0)
	if err != nil {
		return -1, fmt.Errorf("the program closed the region's file: %w", err)
	}
	if !f.is(fd) {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("the program closed the region's file, and another is at %s: %w", f.path, ErrDamaged)
	}
	f.fd = fd
	for slot := range f.held {
		if f.held[slot].Load() != 0 {
			l := slotByte(slot, unix.F_WRLCK)
			_ = unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &l)
		}
	}
	return fd, nil
}

// number returns the descriptor without a check, right after it was opened. Another goroutine may
// replace it by a writable one; both are valid.
func (f *file) number() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fd
}

// checkOwner refuses a file that another user made.
func (f *file) checkOwner(path string) error {
	var st unix.Stat_t
	if err := unix.Fstat(f.number(), &st); err != nil {
		return fmt.Errorf("looking at %s: %w", path, err)
	}
	if me := uint32(unix.Geteuid()); st.Uid != me && st.Uid != 0 {
		return fmt.Errorf("region %s belongs to user %d, this process runs as %d: %w (use a path of your own)", path, st.Uid, me, ErrOwner)
	}
	return nil
}

// inspect reads the file before it is mapped, and finds out what it is. fresh means that its
// initialisation may be incomplete.
func (f *file) inspect(path string) (fresh bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(f.number(), &st); err != nil {
		return false, fmt.Errorf("looking at %s: %w", path, err)
	}
	if st.Size == 0 {
		return true, nil
	}
	var h abi.Header
	if _, err := unix.Pread(f.number(), bytesOf(&h), 0); err != nil {
		return false, fmt.Errorf("reading %s: %w", path, err)
	}
	switch {
	case h.Magic == 0 && st.Size == regionSize:
		return true, nil
	case h.Magic != abi.Magic:
		return false, fmt.Errorf("opening %s: %w (choose another path, or remove the file if nobody needs it)", path, ErrForeign)
	case h.Version != abi.Version:
		return false, fmt.Errorf("opening %s: %w: it has version %d, this program needs %d (end the job's processes and remove the file, or use the ration that made it)",
			path, ErrVersion, h.Version, abi.Version)
	case st.Size != regionSize || h.Size != uint64(regionSize) && h.State == abi.StateComplete:
		return false, fmt.Errorf("opening %s: %w: %d bytes where %d belong (it was cut short or overwritten; end the job's processes and remove it)",
			path, ErrSize, st.Size, regionSize)
	}
	return h.State != abi.StateComplete, nil
}

// allocate gives the file its size and its blocks, so that a full file system is an error here and
// not a fault later. A file on a file system of its own (job.Confine) stays sparse: a page is
// charged to the first process that uses it, and most are never used. It may be called twice. made
// is true if the file was empty before.
func (f *file) allocate(path string) (made bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(f.number(), &st); err != nil {
		return false, fmt.Errorf("looking at %s: %w", path, err)
	}
	if made = st.Size == 0; made {
		// Do it in one step, so that no process sees a size in between.
		if err := unix.Ftruncate(f.number(), regionSize); err != nil {
			return false, noSpace(path, err)
		}
	}
	point(abi.InitSized)
	if f.alone() {
		return made, nil
	}
	for {
		err := unix.Fallocate(f.number(), 0, 0, regionSize)
		switch {
		case err == nil, errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
			return made, nil
		case errors.Is(err, unix.EINTR):
			continue
		}
		return false, noSpace(path, err)
	}
}

// alone reports whether the file is on a tmpfs that has enough blocks for it, and no inode for
// another file beside it and the root folder. Then no other file can take these blocks.
func (f *file) alone() bool {
	var fs unix.Statfs_t
	return unix.Fstatfs(f.number(), &fs) == nil && fs.Type == unix.TMPFS_MAGIC && fs.Files == 2 && int64(fs.Blocks)*fs.Bsize >= regionSize
}

func noSpace(path string, err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG) {
		return fmt.Errorf("making region %s: %w: it needs %d bytes (%v; free some, or choose another path)", path, ErrNoSpace, regionSize, err)
	}
	return fmt.Errorf("making region %s: %w", path, err)
}

// unmade returns the error for a file that was never initialised, for a caller that will not do it.
func (f *file) unmade(path string) error {
	var st unix.Stat_t
	if err := unix.Fstat(f.number(), &st); err == nil && st.Size > 0 {
		if err := f.empty(path); err != nil {
			return err
		}
	}
	return fmt.Errorf("opening region %s: %w (it is empty, or still being made)", path, ErrInit)
}

// empty checks that a file whose header is empty has no other content: it may have lost its first
// page, and its old content would be used as ours.
func (f *file) empty(path string) error {
	buf, zero := make([]byte, 64<<10), make([]byte, 64<<10)
	for at := bodyOffset; at < tailOffset; {
		n, err := unix.Pread(f.number(), buf[:min(int64(len(buf)), tailOffset-at)], at)
		if err != nil {
			return fmt.Errorf("reading %s: %w", path, err)
		}
		if n == 0 {
			return fmt.Errorf("opening %s: %w (it was cut short while being made; remove it)", path, ErrSize)
		}
		if !bytes.Equal(buf[:n], zero[:n]) {
			return fmt.Errorf("opening %s: %w: its header is empty, the rest is not (remove it if nobody needs it)", path, ErrForeign)
		}
		at += int64(n)
	}
	return nil
}
