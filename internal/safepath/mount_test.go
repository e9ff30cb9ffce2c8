package safepath

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/check/testenv"
)

func TestUserMounts(t *testing.T) {
	got := userMounts("22 1 8:1 / / rw - ext4 /dev/sda1 rw,user_id=5\n" +
		"95 22 0:52 / /home/ann/at rw,nosuid shared:50 - fuse.sshfs h: rw,user_id=1000,group_id=1000,allow_other\n" +
		"96 22 0:53 / /home/with\\040-\\040dash rw - fuse none rw,user_id=1001,group_id=0\n" +
		"97 22 0:54 / /srv rw - fuse.gluster srv rw,user_id=0,group_id=0,allow_other\n" +
		"98 22 8:2 / /mnt rw master:1 propagate_from:2 - fuseblk /dev/sdb rw,user_id=1002\n" +
		"x 22 0:54 / /srv rw - fuse none rw,user_id=7\n\n- fuse\n99 - fuse\n")
	expect.Equal(t, fmt.Sprint(got), "map[95:1000 96:1001 98:1002]")
}

// envMount is set in the process of TestMount that has a mount namespace of its own.
const envMount = "RATION_TEST_MOUNT"

// A file system that another user has mounted, and that answers nothing, is not asked: neither as a
// folder on the way, nor as the last one, nor as a file.
func TestMount(t *testing.T) {
	if dir := os.Getenv(envMount); dir != "" {
		askMounts(t, dir)
		return
	}
	testenv.NeedsRoot(t, "only root can mount a file system as another user's")
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil {
		t.Skip("no FUSE here:", err)
	} else {
		f.Close()
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestMount$", "-test.v")
	cmd.Env = append(os.Environ(), envMount+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	out, err := cmd.CombinedOutput()
	expect.True(t, err == nil, err, out)
}

// mountSilent mounts a file system of a user over a file or a folder. It answers nothing before f is closed.
func mountSilent(t *testing.T, at string, uid int) (f *os.File) {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	expect.Must(t, err == nil, err)
	st, err := os.Stat(at)
	expect.Must(t, err == nil, err)
	mode := unix.S_IFREG
	if st.IsDir() {
		mode = unix.S_IFDIR
	}
	err = unix.Mount("silent", at, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=%o,user_id=%d,group_id=%d,allow_other", f.Fd(), mode, uid, uid))
	expect.Must(t, err == nil, "mounting FUSE:", err)
	return f
}

func askMounts(t *testing.T, dir string) {
	const user = 4001
	expect.OK(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	expect.OK(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "")) // root's: it is entered
	folder, file := filepath.Join(dir, "folder"), filepath.Join(dir, "file")
	expect.OK(t, errors.Join(os.Mkdir(folder, 0o700), os.WriteFile(file, nil, 0o600)))
	top, err := OpenFolder(dir)
	expect.OK(t, err)
	expect.OK(t, StatAt(top, "file", new(unix.Stat_t))) // the table of mounts is known now
	served := []*os.File{mountSilent(t, folder, user), mountSilent(t, file, user)}
	ended := time.AfterFunc(20*time.Second, func() {
		fmt.Println("the file system was asked")
		for _, f := range served {
			f.Close() // every request gets an error
		}
		os.Exit(1)
	})
	defer ended.Stop()
	opened := func(_ int, err error) error { return err }
	for what, err := range map[string]error{
		"a folder on the way":        opened(Open(filepath.Join(folder, "in", "it"), unix.O_RDONLY, 0)),
		"the folder":                 opened(OpenFolder(folder)),
		"a folder of an open one":    opened(OpenAt(top, "folder", unix.O_PATH|unix.O_DIRECTORY, 0)),
		"a file of an open folder":   opened(OpenAt(top, "file", unix.O_RDONLY, 0)),
		"a folder below an open one": opened(OpenFolderBelow(top, "folder/in")),
		"what a file is":             StatAt(top, "file", new(unix.Stat_t)),
		"what a folder is":           StatAt(top, "folder", new(unix.Stat_t)),
	} {
		expect.True(t, errors.Is(err, ErrMount), what, err)
	}
	expect.OK(t, errors.Join(unix.Unmount(folder, unix.MNT_DETACH), unix.Unmount(file, unix.MNT_DETACH)))
	expect.OK(t, StatAt(top, "file", new(unix.Stat_t)))
}
