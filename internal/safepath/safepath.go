// Package safepath opens files by paths of which other users can write a part. A user
// who can write a folder can put a symbolic link into it, or swap a folder for a link
// while the path is being followed, and so lead a process with more rights to a file
// that only that process may touch.
//
// A path is therefore walked folder by folder, by descriptor. A symbolic link is
// followed only where nobody but root and this process's user can have put it: in a
// folder that only they can write, or as a link of theirs in a folder like /tmp, where
// users cannot remove each other's files.
//
// A link of /proc/PID leads into that process's own view of the file system (root, cwd). The
// kernel follows it, and from there on no link is followed at all: what is there is the
// process's to arrange.
package safepath

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrLink is returned for a symbolic link that another user can have put there.
var ErrLink = errors.New("symbolic link that another user can change")

// maxLinks is how many links are followed, as many as the kernel follows.
const maxLinks = 40

// Open opens a file like open(2) with O_CLOEXEC, without following a link to it (the
// error is then ELOOP). It opens a pipe, and a file with a lease, without waiting. The
// error is the bare one.
func Open(path string, flags int, mode uint32) (fd int, err error) {
	dir, err := OpenFolder(filepath.Dir(path))
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	return OpenAt(dir, filepath.Base(path), flags, mode)
}

// OpenAt is Open of a name in a folder, by the folder's descriptor.
func OpenAt(dir int, name string, flags int, mode uint32) (fd int, err error) {
	return openat(dir, name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, mode)
}

// OpenFolder opens a folder, for what takes a descriptor of one (O_PATH).
func OpenFolder(path string) (fd int, err error) {
	fd, _, err = OpenFolderOf(path)
	return fd, err
}

// OpenFolderOf is OpenFolder, and also returns who else could have led the path
// elsewhere: the UID of the one user but root who can write a folder on it, 0 where
// there is none, and Several where there are more.
func OpenFolderOf(path string) (fd int, writer int, err error) {
	w := walker{path: path}
	fd, err = w.walk()
	return fd, w.writer, err
}

// OpenFolderBelow opens the folder of a path below another one, by that one's descriptor: through no link
// at all, and to nothing above it. A name at a time: openat2(2), which could do it at once, is forbidden
// where a service may make no set-user-ID files, as its arguments are not seen.
func OpenFolderBelow(root int, path string) (fd int, err error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW
	if fd, err = openat(root, ".", flags, 0); err != nil {
		return -1, err
	}
	for _, name := range split(path) {
		var next int
		if err = unix.EXDEV; name != ".." {
			next, err = openat(fd, name, flags, 0)
		}
		_ = unix.Close(fd)
		if err != nil {
			return -1, err
		}
		fd = next
	}
	return fd, nil
}

// Several is the writer of a path that more than one user can change.
const Several = -1

func (w *walker) walk() (fd int, err error) {
	full, err := filepath.Abs(w.path)
	if err != nil {
		return -1, err
	}
	if err := w.start(); err != nil {
		return -1, err
	}
	defer func() {
		if err != nil {
			_ = unix.Close(w.fd)
		}
	}()
	todo := split(full)
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		link, err := w.enter(name)
		if err != nil {
			return -1, err
		}
		if link == "" {
			continue
		}
		if filepath.IsAbs(link) {
			_ = unix.Close(w.fd)
			if err := w.start(); err != nil {
				return -1, err
			}
		}
		todo = append(split(link), todo...)
	}
	return w.fd, nil
}

// split returns the parts of a path. Blank ones, and ".", are left out; ".." is not:
// behind a link it means another folder.
func split(path string) []string {
	var parts []string
	for part := range strings.SplitSeq(path, "/") {
		if part != "" && part != "." {
			parts = append(parts, part)
		}
	}
	return parts
}

// walker is on its way along a path.
type walker struct {
	path   string // as it was given, for messages
	fd     int    // the folder it has come to
	writer int    // as of OpenFolderOf
	links  int    // followed
	inside bool   // of a process's own view of the file system: no link is followed
}

func (w *walker) start() (err error) {
	w.fd, err = openat(unix.AT_FDCWD, "/", unix.O_PATH|unix.O_DIRECTORY, 0)
	return err
}

// enter goes into the folder of that name. Where the name is a link, it stays and
// returns what the link says.
func (w *walker) enter(name string) (link string, err error) {
	next, err := openat(w.fd, name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return "", err
	}
	var st unix.Stat_t
	if err := unix.Fstat(next, &st); err != nil {
		_ = unix.Close(next)
		return "", err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		_ = unix.Close(w.fd)
		w.fd = next
		w.passed(&st)
		return "", nil
	case unix.S_IFLNK:
		defer unix.Close(next)
		return w.follow(next, name, &st)
	}
	_ = unix.Close(next)
	return "", unix.ENOTDIR
}

// passed adds a folder's writers to those of the path. In a folder like /tmp users cannot
// replace each other's folders.
func (w *walker) passed(st *unix.Stat_t) {
	if w.inside || st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0 || w.writer != 0 && st.Uid != 0 && int(st.Uid) != w.writer {
		w.writer = Several
	} else if st.Uid != 0 {
		w.writer = int(st.Uid)
	}
}

// follow reads a link, by the descriptor that was checked.
func (w *walker) follow(fd int, name string, link *unix.Stat_t) (string, error) {
	var folder unix.Stat_t
	var fs unix.Statfs_t
	if err := errors.Join(unix.Fstat(w.fd, &folder), unix.Fstatfs(w.fd, &fs)); err != nil {
		return "", err
	}
	if fs.Type == unix.PROC_SUPER_MAGIC && !w.inside {
		return "", w.enterProcess(name)
	}
	if w.links++; w.links > maxLinks {
		return "", unix.ELOOP
	}
	const sticky = unix.S_ISVTX
	others := folder.Mode&0o022 != 0
	if w.inside || !trusted(&folder) || others && (folder.Mode&sticky == 0 || !trusted(link)) {
		return "", fmt.Errorf("%s: %s is a %w (name the folder itself)", w.path, name, ErrLink)
	}
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", buf)
	if err != nil {
		return "", err
	}
	if n == 0 {
		return "", unix.ENOENT
	}
	return string(buf[:n]), nil
}

// enterProcess goes where a link of /proc leads, which its text does not say.
func (w *walker) enterProcess(name string) error {
	next, err := openat(w.fd, name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	_ = unix.Close(w.fd)
	w.fd = next
	var fs unix.Statfs_t
	if unix.Fstatfs(next, &fs) != nil || fs.Type != unix.PROC_SUPER_MAGIC { // not self, which stays in /proc
		w.inside, w.writer = true, Several
	}
	return nil
}

// trusted reports whether root or this process's user owns a file.
func trusted(st *unix.Stat_t) bool { return st.Uid == 0 || st.Uid == uint32(unix.Geteuid()) }

func openat(dir int, name string, flags int, mode uint32) (fd int, err error) {
	for {
		fd, err = unix.Openat(dir, name, flags|unix.O_CLOEXEC, mode)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}
