package safepath

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// TempPrefix begins the name of a file that Replace has not finished. A process that was killed in
// Replace leaves one.
const TempPrefix = ".ration-tmp-"

// Replace writes a file by a rename: every reader, also after a crash of the machine, finds the old
// content or the new one, and nothing in between. It syncs the file before the rename and the folder
// after it. A link at path is replaced, not followed; the folder is opened as Open does it. The mode
// does not depend on the umask. The error does not name the path.
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

// SyncFolder syncs a folder, so that files made, renamed or removed in it are so after a crash of the
// machine.
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
	if err := unix.Fsync(fd); !errors.Is(err, unix.EINVAL) { // EINVAL: this file system syncs no folders
		return err
	}
	return nil
}
