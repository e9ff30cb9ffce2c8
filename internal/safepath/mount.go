package safepath

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrMount is returned for a file system (FUSE) that another user has mounted. A process that asks it
// for anything waits until that user's program answers, even after SIGKILL.
var ErrMount = errors.New("file system that another user has mounted (FUSE)")

// StatAt is fstatat(2) for a file in a folder that another user can write. It does not follow a link.
func StatAt(dir int, name string, st *unix.Stat_t) error {
	if err := checkMount(dir, name); err != nil {
		return err
	}
	return unix.Fstatat(dir, name, st, unix.AT_SYMLINK_NOFOLLOW)
}

// checkMount returns ErrMount if a file is the root of a file system that another user has mounted. An
// empty name is the descriptor itself. It asks only the kernel, not the file system. Kernels before 5.8
// do not say what is mounted: there it returns nil.
func checkMount(dir int, name string) error {
	if _, is := mountedBy(dir, name); is {
		return ErrMount
	}
	return nil
}

// mountedBy returns the other user that has mounted a file system whose root is the file.
func mountedBy(dir int, name string) (user int, is bool) {
	var st unix.Statx_t
	if statMount(dir, name, &st) != nil || st.Mask&unix.STATX_MNT_ID == 0 || st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return 0, false
	}
	user, is = mounts.user(st.Mnt_id)
	return user, is && user != unix.Geteuid()
}

// statMount asks the kernel on which mount a file is. It asks for nothing else, not even by a bit for the mount: a file
// system that does not let root in refuses every question that has a bit.
func statMount(dir int, name string, st *unix.Statx_t) error {
	const flags = unix.AT_EMPTY_PATH | unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	return unix.Statx(dir, name, flags, 0, st)
}

// Exists reports whether there is a file or a link at a path. If another user has mounted a file system over it, Exists
// does not ask that.
func Exists(path string) bool {
	var st unix.Statx_t
	err := statMount(unix.AT_FDCWD, path, &st)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) { // a kernel before 4.11, or a filter that does not know the call
		_, err = os.Lstat(path)
	}
	return err == nil
}

// maxCovers bounds the file systems that Uncover unmounts: a user may mount new ones meanwhile.
const maxCovers = 64

// Uncover unmounts what other users have mounted (FUSE) over a file in a folder that only root can change, and returns these
// users. fusermount lets a user mount over every file that the user can write. Only root can unmount it.
func Uncover(path string) (users []int, err error) {
	dir, writer, err := OpenFolderOf(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	name := filepath.Base(path)
	for range maxCovers {
		user, is := mountedBy(dir, name)
		if !is {
			return users, nil
		}
		if writer != 0 {
			return users, fmt.Errorf("%s: %w (user %d), in a folder that user %d can change", path, ErrMount, user, writer)
		}
		// The folder's descriptor leads there, whatever is mounted over the path meanwhile.
		at := fmt.Sprintf("/proc/self/fd/%d/%s", dir, name)
		if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: it was unmounted
			return users, fmt.Errorf("unmounting a %w, of user %d: %w (umount -l %s)", ErrMount, user, err, path)
		}
		users = append(users, user)
	}
	return users, fmt.Errorf("%s: %w (user %d mounts it again and again: end that user's processes)", path, ErrMount, users[0])
}

// mountTable has the mounts of users in this process's mount namespace. The kernel signals its file when
// it has changed.
type mountTable struct {
	mu    sync.Mutex
	list  *os.File // nil if it was not opened yet, or could not be opened
	users map[uint64]int
}

var mounts mountTable

// user returns the user that has mounted a file system, given the number of the mount.
func (m *mountTable) user(mount uint64) (uid int, is bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refresh()
	uid, is = m.users[mount]
	return uid, is
}

// AnyMounts reports whether a user other than root has mounted a file system (FUSE) anywhere.
func AnyMounts() bool {
	mounts.mu.Lock()
	defer mounts.mu.Unlock()
	mounts.refresh()
	return len(mounts.users) > 0
}

// refresh reads the list if it has changed. The caller holds m.mu.
func (m *mountTable) refresh() {
	if m.list == nil {
		// Not by os.Open: the runtime would poll the file, too, and take the signals.
		fd, err := openat(unix.AT_FDCWD, "/proc/self/mountinfo", unix.O_RDONLY, 0)
		if err != nil {
			return
		}
		m.list = os.NewFile(uintptr(fd), "mountinfo")
		m.read()
	}
	changed := []unix.PollFd{{Fd: int32(m.list.Fd()), Events: unix.POLLPRI}}
	if n, err := unix.Poll(changed, 0); n > 0 || err != nil {
		m.read()
	}
}

func (m *mountTable) read() {
	_, err := m.list.Seek(0, io.SeekStart)
	text, err2 := io.ReadAll(m.list)
	if errors.Join(err, err2) == nil {
		m.users = userMounts(string(text))
	}
}

// userMounts returns the FUSE mounts of users other than root, from a list of mounts:
//
//	95 29 0:52 / /home/ann/at rw,nosuid,nodev shared:50 - fuse.sshfs h: rw,user_id=1000,group_id=1000,allow_other
func userMounts(list string) map[uint64]int {
	out := map[uint64]int{}
	for line := range strings.Lines(list) {
		mount, fs, _ := strings.Cut(line, " - ")
		number, _, _ := strings.Cut(mount, " ")
		id, err := strconv.ParseUint(number, 10, 64)
		fields := strings.Fields(fs)
		if err != nil || len(fields) < 3 || !strings.HasPrefix(fields[0], "fuse") {
			continue
		}
		for option := range strings.SplitSeq(fields[len(fields)-1], ",") {
			text, found := strings.CutPrefix(option, "user_id=")
			if uid, err := strconv.Atoi(text); found && err == nil && uid != 0 {
				out[id] = uid
			}
		}
	}
	return out
}
