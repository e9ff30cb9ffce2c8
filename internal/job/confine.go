package job

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"ration/internal/region"
)

// Confine puts an empty file for the job's region on a file system of its own, which has
// no room for more: programs of any user write that file, and could otherwise fill the
// one that the folder of jobs is on, /run, for the whole machine. The region is mounted
// where it would have been, and removed with the job. Only root may do this, and kernels
// before 5.2 cannot: there the region is an ordinary file.
func (l *Lock) Confine() error {
	own, err := newFileSystem(region.FileSize, 2)
	if errors.Is(err, unix.ENOSYS) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("making a file system for job %s: %w", l.Job.Name, err)
	}
	defer unix.Close(own)
	file, err := unix.Openat(own, RegionName, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("making the region of job %s: %w", l.Job.Name, err)
	}
	_ = unix.Close(file)
	tree, err := unix.OpenTree(own, RegionName, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("making the region of job %s: %w", l.Job.Name, err)
	}
	defer unix.Close(tree)
	if err := os.WriteFile(l.Job.Path, nil, 0o600); err != nil { // to mount on
		return fmt.Errorf("making the region of job %s: %w", l.Job.Name, err)
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, l.Job.Path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mounting the region of job %s: %w", l.Job.Name, err)
	}
	return nil
}

// MachineName is the folder, in a job's, with the state of its stand-in machine. Programs of
// any user write in it where the job is one of root's.
const MachineName = "gpu"

// What a stand-in machine has room for: its file, which takes memory as it is used, a second one
// while that is made, and a few more.
const (
	machineSize   = 96 << 20
	machineInodes = 64
)

// ConfineMachine makes the folder of a stand-in machine, on a file system of its own, as
// Confine does with the region.
func (l *Lock) ConfineMachine() error {
	own, err := newFileSystem(machineSize, machineInodes)
	if errors.Is(err, unix.ENOSYS) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("making a file system for job %s: %w", l.Job.Name, err)
	}
	defer unix.Close(own)
	folder := filepath.Join(l.Folder, MachineName)
	if err := os.Mkdir(folder, 0o700); err != nil {
		return fmt.Errorf("making the stand-in machine of job %s: %w", l.Job.Name, err)
	}
	if err := unix.MoveMount(own, "", unix.AT_FDCWD, folder, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mounting the stand-in machine of job %s: %w", l.Job.Name, err)
	}
	return nil
}

// newFileSystem makes a tmpfs that has room for so many bytes and files, its folder among them,
// mounted nowhere.
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

// unmount undoes Confine and ConfineMachine, in this mount namespace. Where nothing is mounted
// it does nothing.
func unmount(folder string) {
	for _, name := range []string{RegionName, MachineName} {
		_ = unix.Unmount(filepath.Join(folder, name), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
}
