package job

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/check/testenv"
	"ration/internal/safepath"
)

// A job is found by which file its region is, not by how its path is written.
func TestFindByAnotherPath(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(EnvFolder, filepath.Join(dir, "jobs"))
	j, slot := used(t, "train")
	defer slot.Leave()
	link := filepath.Join(dir, "elsewhere")
	expect.OK(t, os.Symlink(filepath.Dir(j.Path), link))
	for _, path := range []string{filepath.Join(link, "region"), filepath.Dir(j.Path) + "/../train//region"} {
		got, err := Find(path)
		expect.True(t, err == nil && got == j, path, got, err, j)
	}
	hard := filepath.Join(dir, "hard")
	expect.OK(t, os.Link(j.Path, hard))
	err := Remove(Job{Path: hard}, true)
	expect.True(t, errors.Is(err, ErrLiving), "removing it by another name while it is in use", err)
}

// A link that another user can have put there leads nowhere.
func TestFindThroughALinkOfOthers(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(EnvFolder, filepath.Join(dir, "jobs"))
	j, slot := used(t, "theirs")
	defer slot.Leave()
	public := filepath.Join(dir, "public")
	expect.OK(t, os.Mkdir(public, 0o777))
	expect.OK(t, os.Chmod(public, 0o777))
	expect.OK(t, os.Symlink(filepath.Dir(j.Path), filepath.Join(public, "d")))
	got, err := Find(filepath.Join(public, "d", "region"))
	expect.True(t, errors.Is(err, safepath.ErrLink), got, err)
	expect.True(t, Remove(Job{Path: filepath.Join(public, "d", "region")}, true) != nil, "removed through it")
	expect.True(t, safepath.Exists(j.Path), "the region is gone")
}

// Root removes no file for one user that is another's to remove.
func TestRemoveInAFolderOfOthers(t *testing.T) {
	testenv.NeedsRoot(t, "only root could remove it")
	const one, other = 12345, 12346
	for name, c := range map[string]struct {
		folder, file int
		mode         os.FileMode
		removed      bool
	}{
		"its user's":     {one, one, 0o755, true},
		"another user's": {one, other, 0o755, false},
		"root's":         {0, one, 0o755, true},
		"everybody's":    {0, one, 0o777, false},
		"like /tmp":      {0, one, 0o777 | os.ModeSticky, false},
		"root's in /tmp": {0, 0, 0o777 | os.ModeSticky, true},
		"of its group":   {one, one, 0o775, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "d")
			t.Setenv(EnvFolder, filepath.Join(dir, "jobs"))
			j, slot := used(t, "x")
			expect.OK(t, slot.Leave())
			path := filepath.Join(dir, "region")
			expect.OK(t, os.Rename(j.Path, path))
			expect.OK(t, os.Chmod(dir, c.mode))
			expect.OK(t, errors.Join(os.Chown(path, c.file, -1), os.Chown(dir, c.folder, -1)))
			err := Remove(Job{Path: path}, false)
			expect.True(t, (err == nil) == c.removed && safepath.Exists(path) != c.removed, err)
		})
	}
}

// A lease on a job's file delays nobody, and a job that cannot be asked is in use.
func TestLease(t *testing.T) {
	l := locked(t)
	l.Release()
	path := filepath.Join(l.Folder, aliveName)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	expect.OK(t, err)
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skipf("no leases here: %v", err) // some file systems have none
	}
	start := time.Now()
	expect.True(t, Running(l.Job), "a job that cannot be asked has ended")
	_, err = Create("train")
	expect.True(t, errors.Is(err, ErrInUse), "created", err)
	// The kernel would make an open wait for 45 s.
	took := time.Since(start)
	expect.True(t, took <= 20*time.Second, "it took", took)
}

// What a command inherits can be read, and no more.
func TestInheritedDescriptor(t *testing.T) {
	l := locked(t)
	expect.OK(t, l.Share())
	for _, most := range []uint64{0, 64} {
		var before unix.Rlimit
		expect.OK(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
		if most > 0 {
			expect.OK(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: before.Max}))
		}
		stop, err := l.Inherit()
		expect.OK(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before))
		expect.OK(t, err)
		fds, found := descriptorsOf(t, filepath.Join(l.Folder, aliveName)), 0
		for _, fd := range fds {
			flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
			expect.OK(t, err)
			if exec, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); exec&unix.FD_CLOEXEC != 0 {
				continue
			}
			if found++; flags&unix.O_ACCMODE != unix.O_RDONLY {
				t.Errorf("descriptor %d is inherited with flags %#x", fd, flags)
			}
		}
		expect.Equal(t, found, 1, "descriptors are inherited")
		stop()
	}
	l.Release()
}

// descriptorsOf returns this process's descriptors of a file.
func descriptorsOf(t *testing.T, path string) (fds []int) {
	t.Helper()
	for fd := range 256 {
		var st, want unix.Stat_t
		if unix.Fstat(fd, &st) == nil && unix.Stat(path, &want) == nil && st.Dev == want.Dev && st.Ino == want.Ino {
			fds = append(fds, fd)
		}
	}
	return fds
}

// A folder that another user has made under this user's name stops nobody.
func TestFolderMadeByAnother(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root's jobs are in /run/ration")
	}
	tmp, home, usually := t.TempDir(), t.TempDir(), SystemPaths
	t.Cleanup(func() { SystemPaths = usually })
	SystemPaths.Temp = tmp
	t.Setenv(EnvFolder, "")
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir()) // which a logout removes
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv("HOME", home)
	usual := Folder()
	expect.Equal(t, filepath.Dir(usual), tmp, usual)
	expect.OK(t, os.Mkdir(usual, 0o777))
	expect.OK(t, os.Chmod(usual, 0o777))
	got, want := Folder(), filepath.Join(home, ".local/state/ration")
	expect.Equal(t, got, want)
	_, err := MakeFolder("train")
	expect.OK(t, err)
}

// What is no file in the place of `alive` blocks a name only until rm --force.
func TestRemoveWithoutAFileToLock(t *testing.T) {
	for name, plant := range map[string]func(string) error{
		"a folder": func(path string) error { return os.Mkdir(path, 0o700) },
		"a link":   func(path string) error { return os.Symlink("/nowhere", path) },
		"a pipe":   func(path string) error { return unix.Mkfifo(path, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "jobs"))
			j, slot := used(t, "train")
			expect.OK(t, slot.Leave())
			expect.OK(t, plant(filepath.Join(filepath.Dir(j.Path), aliveName)))
			err := Remove(j, true)
			expect.True(t, err == nil && !safepath.Exists(filepath.Dir(j.Path)), err)
		})
	}
}

// Nor a file of root's own that a user has moved into the path.
func TestRemoveRootsFileInAFolderOfOthers(t *testing.T) {
	testenv.NeedsRoot(t, "only root could remove it")
	dir := filepath.Join(t.TempDir(), "theirs")
	t.Setenv(EnvFolder, filepath.Join(dir, "jobs"))
	j, slot := used(t, "x")
	expect.OK(t, slot.Leave())
	path := filepath.Join(dir, "backup", "region")
	expect.OK(t, os.Mkdir(filepath.Dir(path), 0o755))
	expect.OK(t, os.Rename(j.Path, path))
	expect.OK(t, os.Chown(dir, 12345, -1))
	err := Remove(Job{Path: path}, true)
	expect.True(t, errors.Is(err, ErrFolder) && safepath.Exists(path), err)
}

// Root keeps no jobs where another user can put another folder in place of theirs.
func TestFolderInAFolderOfOthers(t *testing.T) {
	testenv.NeedsRoot(t, "only root is told: an ordinary user reaches nothing by it that the other could not")
	const tenant = 12345
	for name, c := range map[string]struct {
		make func(dir string) error // what is in dir, a folder of root's
		path string                 // RATION_DIR in it
		good bool
	}{
		"root's": {func(dir string) error { return os.Mkdir(dir+"/a", 0o755) }, "a/jobs", true},
		"a folder like /tmp": {func(dir string) error {
			return errors.Join(os.Mkdir(dir+"/a", 0o755), os.Chmod(dir+"/a", 0o777|os.ModeSticky))
		}, "a/jobs", true},
		"in a tenant's home": {func(dir string) error {
			return errors.Join(os.Mkdir(dir+"/a", 0o755), os.Chown(dir+"/a", tenant, tenant))
		}, "a/jobs", false},
		"deeper in it": {func(dir string) error {
			return errors.Join(os.MkdirAll(dir+"/a/b", 0o755), os.Chown(dir+"/a", tenant, tenant))
		}, "a/b/c/jobs", false},
		"in a public folder": {func(dir string) error { return errors.Join(os.Mkdir(dir+"/a", 0o777), os.Chmod(dir+"/a", 0o777)) }, "a/b/jobs", false},
		"behind another's link": {func(dir string) error {
			return errors.Join(os.Mkdir(dir+"/a", 0o755), os.Mkdir(dir+"/b", 0o755), os.Symlink(dir+"/b", dir+"/a/l"), os.Chown(dir+"/a", tenant, tenant))
		}, "a/l/jobs", false},
		"behind root's link": {func(dir string) error { return errors.Join(os.Mkdir(dir+"/b", 0o755), os.Symlink(dir+"/b", dir+"/l")) }, "l/jobs", true},
	} {
		for _, there := range []bool{false, true} { // the folder of jobs
			t.Run(fmt.Sprintf("%s, there: %v", name, there), func(t *testing.T) {
				dir := t.TempDir()
				expect.OK(t, c.make(dir))
				folder := filepath.Join(dir, c.path)
				if there {
					expect.OK(t, os.MkdirAll(folder, 0o700))
				}
				t.Setenv(EnvFolder, folder)
				_, err := MakeFolder("train")
				expect.True(t, c.good == (err == nil) && (c.good || errors.Is(err, ErrFolder)), "making a job's folder", err)
				expect.True(t, c.good || there || !safepath.Exists(folder), "the folder was made")
				_, err = List()
				expect.True(t, !there || c.good == (err == nil), "listing jobs", err)
			})
		}
	}
}

// Whoever reads a message may do what it says, on a terminal: names that processes gave
// themselves are printable in it, whether the region can be read or not.
func TestMessagesArePrintable(t *testing.T) {
	t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	const evil = "\x1b[2J\u009b\u202e\xff\r"
	before, err := os.ReadFile("/proc/self/comm")
	expect.OK(t, err)
	expect.OK(t, os.WriteFile("/proc/self/comm", []byte(evil), 0))
	defer func() { _ = os.WriteFile("/proc/self/comm", before, 0) }()
	j, slot := used(t, "train")
	defer slot.Leave()
	check := func(err error, pid int) {
		t.Helper()
		expect.True(t, errors.Is(err, ErrLiving) && strings.Contains(err.Error(), fmt.Sprintf("pid %d (?[2J??", pid)), err)
		for _, c := range fmt.Sprint(err) {
			expect.True(t, unicode.IsPrint(c), err, "has", c)
		}
	}
	check(Remove(j, false), os.Getpid())
	// What is no region has its holders named by the kernel.
	path := filepath.Join(t.TempDir(), "region")
	expect.OK(t, os.WriteFile(path, make([]byte, 100), 0o600))
	t.Setenv(envComm, evil)
	_, pid := startMember(t, path, 60)
	check(Remove(Job{Path: path}, true), pid)
}

// What another user wrote down as the launcher of a job may be any process that runs.
func TestLauncherOfAnotherUser(t *testing.T) {
	testenv.NeedsRoot(t, "only root has files of two users")
	l := locked(t)
	defer l.RemoveIfUnused()
	expect.OK(t, l.Share())
	for uid, want := range map[int]string{0: "pid %d started", 12345: "pid ?%d started"} {
		expect.OK(t, os.Chown(filepath.Join(l.Folder, aliveName), uid, -1))
		running, by := runningBy(l.Job)
		expect.True(t, running && strings.Contains(by, fmt.Sprintf(want, os.Getpid())), "written by user", uid, running, by)
	}
}
