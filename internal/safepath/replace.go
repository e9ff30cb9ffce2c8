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
func Replace(path string, content []byte, mode os.FileMode) (err error) {
	dir, err := OpenFolder(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	name := TempPrefix + rand.Text()
	fd, err := openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = unix.Unlinkat(dir, name, 0)
		}
	}()
	f := os.NewFile(uintptr(fd), name)
	_, err = f.Write(content)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := unix.Renameat(dir, name, dir, filepath.Base(path)); err != nil {
		return err
	}
	return syncFolder(dir)
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
