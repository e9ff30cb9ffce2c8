// Package job finds, locks and removes jobs. Package machine reads them.
//
// A job's region is in a folder of its own, which can be mounted in a container. That is in a folder that
// only the job's user can write:
//
//	/run/ration/JOB/region                    root's jobs
//	/tmp/ration-UID/JOB/region                a user's
//	$HOME/.local/state/ration/JOB/region      a user's, if another user has made that folder
//
// Under a policy the regions of runs are root's, and the user's folder of a run has only its record.
//
// The folder outlasts the user's logout, which removes XDG_RUNTIME_DIR and what the user has in /dev/shm
// (systemd's RemoveIPC): a process that the job starts afterwards needs the region and the library by their
// paths. It does not depend on TMPDIR, which root does not know. systemd-tmpfiles removes old files in /tmp,
// but none with the sticky bit, so a job's files have it (keepFromAging).
//
// RATION_DIR names another folder of jobs. A folder that another user can write is refused, because
// regions hold the limits.
package job

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"ration/internal/limit"
	"ration/internal/safepath"
)

// Environment variables that say where regions are.
const (
	EnvFolder = "RATION_DIR"                      // the folder of jobs
	EnvRegion = "CUDA_DEVICE_MEMORY_SHARED_CACHE" // path of one more region; HAMi-core's variable
)

// RegionName is the file name of a region in its job's folder.
const RegionName = "region"

// ErrFolder is returned for a folder of jobs that is a link or a file, or that another user owns or can
// write.
var ErrFolder = errors.New("folder of jobs cannot be trusted")

// Folder returns the folder of this user's jobs. It need not exist.
func Folder() string {
	if dir := os.Getenv(EnvFolder); dir != "" {
		return dir
	}
	uid := User()
	if uid == 0 {
		return RootFolder
	}
	if home := os.Getenv("HOME"); filepath.IsAbs(home) {
		if taken, _ := Displaced(); taken != "" {
			return filepath.Join(home, ".local", "state", "ration")
		}
	}
	return inTemp(uid)
}

// Displaced returns the folder in /tmp that this user's jobs would be in, if it cannot be trusted, and why: every user can make
// a folder of that name, and this user could not remove it. Otherwise it returns nothing.
func Displaced() (folder, reason string) {
	uid := User()
	if os.Getenv(EnvFolder) != "" || uid == 0 {
		return "", ""
	}
	folder = inTemp(uid)
	if reason, err := UntrustedReason(folder); err == nil && reason != "" {
		return folder, reason
	}
	return "", ""
}

func inTemp(uid int) string { return filepath.Join(SystemPaths.Temp, tempPrefix+strconv.Itoa(uid)) }

// OtherFolders returns further folders that may have jobs of this user: the home, and those in which earlier versions of
// ration made jobs. Jobs in them are read, and found by name; new ones are made in Folder. There are none for root, who
// reads all users' folders, nor where EnvFolder names one folder.
func OtherFolders() (out []string) {
	if os.Getenv(EnvFolder) != "" || User() == 0 {
		return nil
	}
	uid := strconv.Itoa(User())
	all := []string{inTemp(User()), filepath.Join(SystemPaths.Runtime, uid, "ration"), filepath.Join(os.TempDir(), tempPrefix+uid)}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		all = append(all, filepath.Join(dir, "ration"))
	}
	if home := os.Getenv("HOME"); filepath.IsAbs(home) {
		all = append(all, filepath.Join(home, ".local", "state", "ration"))
	}
	own := Folder()
	for _, dir := range all {
		if reason, err := UntrustedReason(dir); dir != own && !slices.Contains(out, dir) && err == nil && reason == "" {
			out = append(out, dir)
		}
	}
	return out
}

// AllUsers reports whether this process reads the jobs of all users: root's does, unless EnvFolder names
// one folder.
func AllUsers() bool { return User() == 0 && os.Getenv(EnvFolder) == "" }

// AgentUser is the user that root's agent reads as.
const AgentUser = "ration"

var lookForRoot bool

// LookForRoot makes this process read jobs on behalf of root. The process runs as another user,
// with the right to read all files. Call it once, at the start.
func LookForRoot() { lookForRoot = true }

// User returns the user on whose behalf this process reads jobs: its own, or root after LookForRoot.
func User() int {
	if lookForRoot {
		return 0
	}
	return os.Geteuid()
}

// RegionPath returns the path of a job's region, which need not exist.
func RegionPath(name string) (string, error) {
	if err := limit.CheckName("job", name); err != nil {
		return "", err
	}
	return filepath.Join(Folder(), name, RegionName), nil
}

// MakeFolder makes a job's folder, for this user only, unless it exists. It returns the path of the job's
// region.
func MakeFolder(name string) (string, error) {
	path, err := RegionPath(name)
	if err != nil {
		return "", err
	}
	if err := makeTop(); err != nil {
		return "", err
	}
	if err := makeTrusted(filepath.Dir(path)); err != nil {
		return "", err
	}
	return path, nil
}

// MakeScratch makes a folder beside this user's jobs that is no job, for the caller to remove.
func MakeScratch() (string, error) {
	if err := makeTop(); err != nil {
		return "", err
	}
	return os.MkdirTemp(Folder(), ".scratch-") // no job has a name that begins with a dot
}

// makeTop makes the folder of this user's jobs, unless it exists.
func makeTop() error {
	folder := Folder()
	if os.Geteuid() == 0 && !safepath.Exists(folder) { // root makes nothing in another user's folder
		if err := untrusted(folder, func(string) (string, error) { return changeableBy(nearest(folder)) }); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(folder), 0o755); err != nil {
		return fmt.Errorf("making the folder of jobs: %w (name another in %s)", err, EnvFolder)
	}
	return makeTrusted(folder)
}

// makeTrusted makes a folder for this user only, unless it exists, and checks whether it can be trusted.
func makeTrusted(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("making the folder of jobs: %w (name another in %s)", err, EnvFolder)
	}
	return checkTrusted(dir)
}

// CheckFolder returns ErrFolder, wrapped, if the folder of this user's jobs, which exists, cannot be trusted.
func CheckFolder() error { return checkTrusted(Folder()) }

func checkTrusted(dir string) error { return untrusted(dir, UntrustedReason) }

// untrusted returns an error if reasonOf returns a reason for a folder.
func untrusted(dir string, reasonOf func(string) (string, error)) error {
	reason, err := reasonOf(dir)
	if err != nil || reason == "" {
		return err
	}
	return fmt.Errorf("folder %s %s: %w (name a folder of your own in %s)", dir, reason, ErrFolder, EnvFolder)
}

// nearest returns the first of a folder and its parents that exists.
func nearest(dir string) string {
	for !safepath.Exists(dir) && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
	}
	return dir
}

// UntrustedReason returns why a path must not be trusted, or "": it is not a folder, another user owns or
// can write it, or, for root, another user can replace it.
func UntrustedReason(dir string) (string, error) {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return "", fmt.Errorf("checking %s: %w", dir, err)
	}
	switch euid := uint32(User()); {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return "is not a folder", nil
	case st.Uid != euid && st.Uid != 0:
		return fmt.Sprintf("belongs to user %d, not to %d", st.Uid, euid), nil
	case st.Mode&0o022 != 0:
		return fmt.Sprintf("can be written by others (mode %04o)", st.Mode&0o7777), nil
	case euid == 0:
		return changeableBy(dir)
	}
	return "", nil
}

// changeableBy says which users other than root can replace a folder, or returns "".
func changeableBy(dir string) (string, error) {
	fd, writer, err := safepath.OpenFolderOf(dir)
	if errors.Is(err, safepath.ErrLink) {
		return "is behind a link that another user can change", nil
	}
	if err != nil {
		return "", fmt.Errorf("checking %s: %w", dir, err)
	}
	_ = unix.Close(fd)
	switch writer {
	case 0:
		return "", nil
	case safepath.Several:
		return "is in a folder that other users can write, who can replace it", nil
	}
	return fmt.Sprintf("is in a folder of user %d, who can replace it", writer), nil
}

var fileSystems = map[int64]string{
	unix.TMPFS_MAGIC: "tmpfs", unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs",
	unix.OVERLAYFS_SUPER_MAGIC: "overlayfs", unix.NFS_SUPER_MAGIC: "NFS",
}

// FileSystem returns the name of the file system that a folder is on.
func FileSystem(dir string) string {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) == nil && fileSystems[int64(st.Type)] != "" {
		return fileSystems[int64(st.Type)]
	}
	return fmt.Sprintf("a file system of type %#x", st.Type)
}
