package safepath

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// TempPrefix is the prefix of an unfinished file of Replace. A process that is killed in Replace
// leaves one behind.
const TempPrefix = ".ration-tmp-"

// Replace writes a file by a rename: every reader, even after a crash of the machine, finds the old
// content or the new content, and nothing in between. It syncs the file before the rename and the
// folder after it. It replaces a link at path and does not follow it; it opens the folder as Open
// does. The mode does not depend on the umask. The error does not contain the path.
func Replace(path string, content []byte, mode os.FileMode) error {
	f, err := Stage(path, content, mode)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Place(); err != nil {
		return err
	}
	return syncFolder(f.dir)
}

// Staged is the new content of a file, beside it. Close removes it, unless it is in place.
type Staged struct {
	dir        int
	name, base string // name is empty when it is in place
}

// Stage writes and synchronises the new content of a file, as Replace does, and leaves the file as it is. So the caller
// need not wait for a disk while it holds a lock under which the file is replaced.
func Stage(path string, content []byte, mode os.FileMode) (*Staged, error) {
	return StageBy(path, mode, func(f *os.File) error {
		_, err := f.Write(content)
		return err
	})
}

// StageBy is Stage with a function that writes the new content.
func StageBy(path string, mode os.FileMode, write func(*os.File) error) (_ *Staged, err error) {
	dir, err := OpenFolder(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	s := &Staged{dir: dir, base: filepath.Base(path)}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	name := TempPrefix + rand.Text()
	fd, err := openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	s.name = name
	f := os.NewFile(uintptr(fd), name)
	err = write(f)
	return s, errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
}

// Place replaces the file. Other processes see the new content from then on. After a crash of the machine the old content
// may be back.
func (s *Staged) Place() error {
	err := unix.Renameat(s.dir, s.name, s.dir, s.base)
	if err == nil {
		s.name = ""
	}
	return err
}

// Close frees what the content needs.
func (s *Staged) Close() {
	if s.name != "" {
		_ = unix.Unlinkat(s.dir, s.name, 0)
	}
	_ = unix.Close(s.dir)
}

// SyncFolder syncs a folder, so that changes of its files survive a crash of the machine.
func SyncFolder(path string) error {
	dir, err := OpenFolder(path)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return syncFolder(dir)
}

func syncFolder(dir int) error {
	fd, err := openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0) // dir has O_PATH, and cannot be synced
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Fsync(fd); !errors.Is(err, unix.EINVAL) { // EINVAL: this file system cannot sync folders
		return err
	}
	return nil
}
