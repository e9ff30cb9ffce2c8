package safepath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNotYours is returned by Create for a file that another user may have made.
var ErrNotYours = errors.New("another user can have put it there")

// Create is os.Create for a process with more rights than the users that can write the path's
// folders. It does not follow a link that another user may have made. It does not empty a file with
// a second name nor, in a folder that others can write, a file of theirs. It does not open a pipe
// or device of theirs, and does not wait for a lease. It checks a file through a descriptor
// (O_PATH), and opens the same descriptor.
func Create(path string) (*os.File, error) {
	f, err := create(path)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return f, nil
}

func create(path string) (*os.File, error) {
	at, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	for range maxLinks {
		if n, is := ownDescriptor(at); is { // the target of /dev/stderr
			fd, err := unix.FcntlInt(uintptr(n), unix.F_DUPFD_CLOEXEC, 0)
			return newFile(fd, path, err)
		}
		w := walker{path: filepath.Dir(at)}
		dir, err := w.walk()
		if err != nil {
			return nil, err
		}
		w.path = path
		f, link, err := w.createIn(dir, filepath.Base(at))
		_ = unix.Close(dir)
		switch {
		case errors.Is(err, unix.EEXIST): // another process has made it: check it
			continue
		case link == "":
			return f, err
		case filepath.IsAbs(link):
			at = link
		default:
			at = filepath.Dir(at) + "/" + link
		}
	}
	return nil, unix.ELOOP
}

// createIn opens or makes a file in a folder. For a link it returns the link's text.
func (w *walker) createIn(dir int, name string) (f *os.File, link string, err error) {
	// O_PATH does not really open the file: it breaks no lease, and does not block on a pipe.
	look, err := openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.ENOENT) {
		fd, err := openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o666)
		f, err := newFile(fd, w.path, err)
		return f, "", err
	}
	if err != nil {
		return nil, "", err
	}
	defer unix.Close(look)
	var st, folder unix.Stat_t
	if err := errors.Join(unix.Fstat(look, &st), unix.Fstat(dir, &folder)); err != nil {
		return nil, "", err
	}
	kind := st.Mode & unix.S_IFMT
	if kind == unix.S_IFLNK {
		var fs unix.Statfs_t
		if unix.Fstatfs(dir, &fs) != nil || fs.Type == unix.PROC_SUPER_MAGIC { // of another process
			return nil, "", ErrLink
		}
		link, err := w.follow(look, name, &st)
		return nil, link, err
	}
	shared := folder.Mode&0o022 != 0 || w.writer != 0 || !trusted(&folder)
	switch {
	case kind == unix.S_IFREG && shared && (st.Nlink > 1 || !trusted(&st) && st.Uid != folder.Uid),
		kind != unix.S_IFREG && shared && !trusted(&st):
		return nil, "", fmt.Errorf("%w: it belongs to user %d and has %d names, and user %d can write the folder (write elsewhere, or remove it)",
			ErrNotYours, st.Uid, st.Nlink, folder.Uid)
	}
	flags := unix.O_WRONLY | unix.O_TRUNC
	if kind == unix.S_IFREG {
		flags |= unix.O_NONBLOCK // does not wait for a lease
	}
	fd, err := openat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(look), flags, 0)
	if errors.Is(err, unix.EAGAIN) {
		err = fmt.Errorf("%w: a process holds a lease on it (end that process, or write elsewhere)", err)
	}
	f, err = newFile(fd, w.path, err)
	return f, "", err
}

// ownDescriptor returns the number in a path like /dev/fd/2 or /proc/self/fd/2.
func ownDescriptor(path string) (n int, is bool) {
	for _, folder := range []string{"/proc/self/fd/", "/dev/fd/"} {
		if digits, is := strings.CutPrefix(path, folder); is {
			n, err := strconv.Atoi(digits)
			return n, err == nil
		}
	}
	return 0, false
}

func newFile(fd int, path string, err error) (*os.File, error) {
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}
