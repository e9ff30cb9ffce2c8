package job

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"ration/internal/region"
)

// Confine puts an empty file for the job's region on a file system of its own, which has no space
// for more. Programs of any user write that file, and could otherwise fill the file system of the
// folder of jobs, /run, for the whole machine. The file is mounted at the region's path, and
// unmounted when the job is removed. Only root may do this. On kernels before 5.2 the region is an
// ordinary file.
func (l *Lock) Confine() error {
	return l.mountOwn("region", region.FileSize, 2, func(own int) error {
		file, err := unix.Openat(own, RegionName, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		_ = unix.Close(file)
		tree, err := unix.OpenTree(own, RegionName, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			return err
		}
		defer unix.Close(tree)
		if err := os.WriteFile(l.Job.Path, nil, 0o600); err != nil { // the mount point
			return err
		}
		return unix.MoveMount(tree, "", unix.AT_FDCWD, l.Job.Path, unix.MOVE_MOUNT_F_EMPTY_PATH)
	})
}

// MachineName is the folder, inside a job's folder, with the state of its stand-in machine. If the
// job is root's, programs of any user write in it.
const MachineName = "gpu"

// Bounds of a stand-in machine: space for its file, which uses memory as it fills, for a second
// file while that one is made, and for a few more.
const (
	machineSize   = 96 << 20
	machineInodes = 64
)

// ConfineMachine makes the folder of a stand-in machine on a file system of its own, as Confine
// does.
func (l *Lock) ConfineMachine() error {
	return l.mountOwn("stand-in machine", machineSize, machineInodes, func(own int) error {
		folder := filepath.Join(l.Folder, MachineName)
		if err := os.Mkdir(folder, 0o700); err != nil {
			return err
		}
		return unix.MoveMount(own, "", unix.AT_FDCWD, folder, unix.MOVE_MOUNT_F_EMPTY_PATH)
	})
}

// mountOwn makes a file system and mounts it with the given function. what is for messages.
func (l *Lock) mountOwn(what string, size, inodes int64, mount func(own int) error) error {
	own, err := newFileSystem(size, inodes)
	if errors.Is(err, unix.ENOSYS) {
		return nil
	}
	if err == nil {
		defer unix.Close(own)
		err = mount(own)
	}
	if err != nil {
		return fmt.Errorf("mounting the %s of job %s: %w", what, l.Job.Name, err)
	}
	return nil
}

// newFileSystem makes a tmpfs with the given number of bytes and inodes (one inode is its root
// folder). It does not mount it.
func newFileSystem(size, inodes int64) (mount int, err error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	page := int64(os.Getpagesize())
	for key, value := range map[string]string{"source": "ration", "size": fmt.Sprint((size + page - 1) / page * page), "nr_inodes": fmt.Sprint(inodes)} {
		if err := unix.FsconfigSetString(fs, key, value); err != nil {
			return -1, err
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
}

// unmount reverts Confine and ConfineMachine in this mount namespace. Without a mount it does
// nothing.
func unmount(folder string) {
	for _, name := range []string{RegionName, MachineName} {
		_ = unix.Unmount(filepath.Join(folder, name), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
}
