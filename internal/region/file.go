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

// file is this process's only descriptor of a region. Closing any descriptor of
// a file drops all the record locks a process holds on it, and with them its
// slots; so every Region of one inode shares one file, and it is closed when
// the last of them is.
type file struct {
	path     string
	writable bool

	mu sync.Mutex // of fd: a program that closes what it did not open takes it from us
	fd int

	key   inode
	spare []int // opened by losing a race for the first open; closed with the rest
	users int

	// claim serialises claims of this process: record locks do not keep one
	// thread from another. held are the slots it has locked, by generation.
	claim sync.Mutex
	held  [abi.Slots]atomic.Uint64
}

type inode struct{ dev, ino uint64 }

var files = struct {
	sync.Mutex
	open map[inode]*file
}{open: map[inode]*file{}}

// openFile opens path, made if missing where create says so, and refuses what
// cannot be a region of ours.
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

// openFileAt is openFile of an existing file, to read it, by the descriptor of its folder.
func openFileAt(dir int, name, path string) (*file, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil {
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

// adopt makes a file of a descriptor that was just opened. It closes the descriptor on an error.
// Nothing that another user could make slow is done under the lock of all files.
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
	full, err := filepath.Abs(path) // as /proc shows it
	if err != nil {
		full = path
	}
	files.Lock()
	defer files.Unlock()
	if f := files.open[keyOf(&st)]; f != nil { // since the look at its name, or for reading only
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

// is says whether fd is a descriptor of this file. Its number may be somebody
// else's by now.
func (f *file) is(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && keyOf(&st) == f.key
}

// descriptor is the file's descriptor, opened again if the program closed it: to
// ask another file for our locks would make everybody look dead.
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

// number is the descriptor as it is, for what was opened a moment ago. Another
// goroutine may put a writable one in its place meanwhile; both are good.
func (f *file) number() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fd
}

// checkOwner refuses a file that another user planted.
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

// inspect decides by reading, before anything is mapped, what the file is.
// fresh means that initialisation is not known to be complete.
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

// allocate gives the file its size and its blocks, so that a full file system is
// an error here and not a fault later. Doing it twice does nothing. made says that it
// had no size before: it holds nothing of anybody's.
func (f *file) allocate(path string) (made bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(f.number(), &st); err != nil {
		return false, fmt.Errorf("looking at %s: %w", path, err)
	}
	if made = st.Size == 0; made {
		// In one step, so that no process sees a size in between.
		if err := unix.Ftruncate(f.number(), regionSize); err != nil {
			return false, noSpace(path, err)
		}
	}
	point(abi.InitSized)
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

func noSpace(path string, err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG) {
		return fmt.Errorf("making region %s: %w: it needs %d bytes (%v; free some, or choose another path)", path, ErrNoSpace, regionSize, err)
	}
	return fmt.Errorf("making region %s: %w", path, err)
}

// unmade says what a file is that was never initialised, to a caller that will not
// do it.
func (f *file) unmade(path string) error {
	var st unix.Stat_t
	if err := unix.Fstat(f.number(), &st); err == nil && st.Size > 0 {
		if err := f.empty(path); err != nil {
			return err
		}
	}
	return fmt.Errorf("opening region %s: %w (it is empty, or still being made)", path, ErrInit)
}

// empty makes sure that a file whose header says nothing holds nothing else
// either: it may have lost its first page, and its figures would be taken up as ours.
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
