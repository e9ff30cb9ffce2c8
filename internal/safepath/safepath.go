// Package safepath opens and replaces files by paths that contain a folder which other users can
// write. Such a user can make a symbolic link in the folder, or replace a folder by a link while
// the path is followed, and so lead a process with more rights to a file that the user may not
// access.
//
// So a path is followed folder by folder, by descriptors. A symbolic link is followed only if no
// user except root and this process's user can have made it: it is in a folder that only they can
// write, or it belongs to them in a folder like /tmp, where users cannot remove each other's files.
//
// A file system (FUSE) that another user has mounted is not entered: ErrMount.
//
// A link of /proc/PID (root, cwd) leads into that process's own view of the file system. The kernel
// follows it. After that no link is followed, because that process can make any.
//
// Watcher watches such folders, and Budget bounds the time that reading them takes.
package safepath

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrLink is returned for a symbolic link that another user may have made.
var ErrLink = errors.New("symbolic link that another user can change")

// maxLinks bounds the links that are followed. The kernel has the same bound.
const maxLinks = 40

// Open opens a file like open(2) with O_CLOEXEC. It does not follow a link to the file (the error
// is ELOOP), and does not wait for a pipe or a lease. The error does not contain the path.
func Open(path string, flags int, mode uint32) (fd int, err error) {
	dir, err := OpenFolder(filepath.Dir(path))
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	return OpenAt(dir, filepath.Base(path), flags, mode)
}

// OpenAt is Open for a file in a folder, given the folder's descriptor.
func OpenAt(dir int, name string, flags int, mode uint32) (fd int, err error) {
	if err := checkMount(dir, name); err != nil {
		return -1, err
	}
	return openat(dir, name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, mode)
}

// OpenFolder opens a folder with O_PATH.
func OpenFolder(path string) (fd int, err error) {
	fd, _, err = OpenFolderOf(path)
	return fd, err
}

// OpenFolderOf is OpenFolder, and also returns the user other than root that can write a folder of
// the path, and so change where it leads: a UID, 0 if there is none, or Several.
func OpenFolderOf(path string) (fd int, writer int, err error) {
	w := walker{path: path}
	fd, err = w.walk()
	return fd, w.writer, err
}

// OpenFolderBelow opens a folder by its path below root. It follows no link, and does not leave
// root. It opens one name at a time. openat2(2) could do it at once, but systemd forbids it to
// services that may not make set-user-ID files, because a filter of system calls cannot see its
// arguments.
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
		if err == nil {
			if err = checkMount(next, ""); err != nil {
				_ = unix.Close(next)
			}
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

// split returns the parts of a path without empty ones and ".". It keeps "..", which after a link
// means another folder.
func split(path string) []string {
	var parts []string
	for part := range strings.SplitSeq(path, "/") {
		if part != "" && part != "." {
			parts = append(parts, part)
		}
	}
	return parts
}

// walker follows a path.
type walker struct {
	path   string // for messages
	fd     int    // the current folder
	writer int    // as in OpenFolderOf
	links  int    // number of links followed
	inside bool   // in a process's own view of the file system: no link is followed
}

func (w *walker) start() (err error) {
	w.fd, err = openat(unix.AT_FDCWD, "/", unix.O_PATH|unix.O_DIRECTORY, 0)
	return err
}

// enter enters the folder of that name. For a link it stays, and returns the link's text.
func (w *walker) enter(name string) (link string, err error) {
	next, err := openat(w.fd, name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return "", err
	}
	var st unix.Stat_t
	err = checkMount(next, "")
	if err == nil {
		err = unix.Fstat(next, &st)
	}
	if err != nil {
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

// passed adds the users that can write a folder to the writers of the path. In a folder like /tmp
// users cannot replace each other's folders.
func (w *walker) passed(st *unix.Stat_t) {
	if w.inside || st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0 || w.writer != 0 && st.Uid != 0 && int(st.Uid) != w.writer {
		w.writer = Several
	} else if st.Uid != 0 {
		w.writer = int(st.Uid)
	}
}

// follow checks and reads a link, by one descriptor.
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

// enterProcess enters the folder behind a link of /proc, such as /proc/PID/root. The kernel follows
// the link; the link's text is not used, because it may not be a path that this process can reach.
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
