package job

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/humanfmt"
	"ration/internal/proc"
	"ration/internal/safepath"
)

// A program may spend minutes on its imports before it first uses a device and gets a slot. So the
// process that launches a job locks the file `alive` in its folder, through a descriptor that the command
// and its children inherit. The lock belongs to the open file (F_OFD_SETLK): it survives fork and exec,
// and the kernel drops it when the last process with the descriptor ends, also if it is killed.
//
//	exclusive  the job is being created or removed
//	shared     the job is in use
//
// The kernel converts one into the other in one step, so no other process can take the lock in between.
//
// A process that waits for the job's end (Wait) waits for an exclusive lock of one byte, waitByte, and
// drops it at once. While it has that lock there is no other, as all others are of the whole file. So
// a process that finds this lock ignores it, or tries again.

// ErrInUse is returned for a job that a process has locked or joined.
var ErrInUse = errors.New("in use")

const (
	aliveName = "alive"
	exclusive = unix.F_WRLCK
	shared    = unix.F_RDLCK
)

// minInheritedFD is the lowest number of an inherited descriptor. Programs may rely on the small numbers
// being free. It is below 64, the size of the kernel's first table: making a larger one for a process
// with threads took 25 ms on a machine with 16 processors.
const minInheritedFD = 56

// firstInheritedFD is the lowest descriptor to use if RLIMIT_NOFILE is below minInheritedFD.
const firstInheritedFD = 3

// Lock is this process's lock on a job.
type Lock struct {
	Job    Job
	Folder string   // the job's own
	file   *os.File // `alive`; the lock lasts as long as it is open
}

// Create takes an exclusive lock on the job of that name, and removes the files of an ended job of that
// name. It is an error if a process uses the job.
func Create(name string) (*Lock, error) {
	l, err := acquire(name, exclusive)
	if err != nil {
		return nil, err
	}
	if u, _ := inspect(l.Job); len(u.living) > 0 {
		l.Release()
		return nil, inUse(name, "by "+processText(u.living[0]))
	}
	if isStanding(l.Job) {
		l.Release()
		return nil, inUse(name, "since ration create made it, until ration rm")
	}
	if err := checkNotTaken(name); err != nil {
		l.Release()
		return nil, err
	}
	if err := l.removeContents(); err != nil {
		l.Release()
		return nil, err
	}
	if err := l.writePID(); err != nil {
		l.Release()
		return nil, err
	}
	return l, nil
}

// CheckUnused returns an error if Create would return one now because the job of that name is in use.
func CheckUnused(name string) error {
	path, err := RegionPath(name)
	if err != nil {
		return err
	}
	if running, by := runningBy(Job{name, path}); running {
		return inUse(name, by)
	}
	return nil
}

// joinTimeout is how long Join waits while another process creates the job.
const joinTimeout = 10 * time.Second

// Join takes a shared lock on a job that is in use, or returns ErrNoJob; the caller may then Create it.
func Join(name string) (*Lock, error) { return join(name, RegionName) }

// JoinRecord is Join for a record, which has no region.
func JoinRecord(name string) (*Lock, error) { return join(name, infoName) }

func join(name, file string) (*Lock, error) {
	for start := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		l, err := acquire(name, shared)
		if err == nil {
			if safepath.Exists(filepath.Join(l.Folder, file)) {
				return l, nil
			}
			l.Release()
			return nil, fmt.Errorf("%s: %w", name, ErrNoJob)
		}
		if !errors.Is(err, ErrInUse) || time.Since(start) > joinTimeout {
			return nil, err
		}
	}
}

// Running reports whether any process has the job locked: its launcher, the command that the launcher
// became, or a child of either.
func Running(j Job) bool {
	running, _ := runningBy(j)
	return running
}

// runningBy is Running, and also names the processes, as launcherText does.
func runningBy(j Job) (running bool, by string) {
	fd, err := safepath.Open(filepath.Join(filepath.Dir(j.Path), aliveName), unix.O_RDONLY, 0)
	if err != nil {
		return errors.Is(err, unix.EAGAIN), "by a process that holds a lease on it"
	}
	defer unix.Close(fd)
	if !inUseBy(fd) {
		return false, ""
	}
	return true, launcherText(fd)
}

// inUseBy reports whether a process uses, creates or removes the job, by a descriptor of the file.
func inUseBy(fd int) bool {
	l := wholeFile(exclusive)
	return unix.FcntlFlock(uintptr(fd), unix.F_OFD_GETLK, &l) == nil && l.Type != unix.F_UNLCK && !isWaiters(&l)
}

// waitByte is the byte that Wait locks.
const waitByte = 1 << 40

// isWaiters reports whether a lock is one of Wait.
func isWaiters(l *unix.Flock_t) bool { return l.Type == exclusive && l.Start == waitByte && l.Len == 1 }

func wholeFile(kind int16) unix.Flock_t { return unix.Flock_t{Type: kind, Whence: 0} }

// acquire locks a job, and makes its folder if it is missing.
func acquire(name string, kind int16) (*Lock, error) {
	for {
		region, err := MakeFolder(name)
		if err != nil {
			return nil, err
		}
		folder := filepath.Dir(region)
		path := filepath.Join(folder, aliveName)
		fd, err := safepath.Open(path, unix.O_RDWR|unix.O_CREAT, 0o600)
		if errors.Is(err, fs.ErrNotExist) {
			continue // another process removed the folder in between
		}
		if errors.Is(err, unix.EAGAIN) {
			return nil, inUse(name, "by a process with a lease on "+path)
		}
		if err != nil {
			return nil, fmt.Errorf("locking job %s: opening %s: %w (remove it)", name, path, err)
		}
		l := &Lock{Job{name, region}, folder, os.NewFile(uintptr(fd), path)}
		err = l.set(kind)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			by := launcherText(int(l.file.Fd()))
			l.Release()
			return nil, inUse(name, by)
		}
		if err != nil {
			l.Release()
			return nil, fmt.Errorf("locking job %s: %w (does the file system of %s have locks?)", name, err, folder)
		}
		// If another process has removed the folder between the open and the lock, this lock is on a
		// file that no other process will find.
		own, err := l.file.Stat()
		current, err2 := os.Lstat(path)
		if err == nil && err2 == nil && os.SameFile(own, current) {
			return l, nil
		}
		l.Release()
	}
}

// set locks the file, or converts the lock. It does not wait for processes that use the job, only for the
// short lock of Wait.
func (l *Lock) set(kind int16) error {
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		lock := wholeFile(kind)
		err := unix.FcntlFlock(l.file.Fd(), unix.F_OFD_SETLK, &lock)
		if err == nil || time.Since(start) > joinTimeout {
			return err
		}
		if unix.FcntlFlock(l.file.Fd(), unix.F_OFD_GETLK, &lock) != nil || lock.Type != unix.F_UNLCK && !isWaiters(&lock) {
			return err
		} // UNLCK: that lock has been dropped
	}
}

func inUse(name, owner string) error {
	if owner != "" {
		owner = " " + owner
	}
	return fmt.Errorf("job %s: %w%s (choose another --name, or share its limit with --join)", name, ErrInUse, owner)
}

// writePID writes this process's PID and start time into the file, for error messages only.
func (l *Lock) writePID() error {
	if err := l.file.Truncate(0); err != nil {
		return fmt.Errorf("locking job %s: %w", l.Job.Name, l.Job.ifFull(err))
	}
	start, _ := proc.Started(os.Getpid()) // 0 matches no process
	if _, err := l.file.WriteAt(fmt.Appendf(nil, "%d %d\n", os.Getpid(), start), 0); err != nil {
		return fmt.Errorf("locking job %s: %w", l.Job.Name, l.Job.ifFull(err))
	}
	return nil
}

// launcherText says which processes use the job, by what writePID wrote, or returns "". It does not name a
// process that has ended: another may have its PID.
func launcherText(fd int) string {
	pid, start, err := parseLauncher(string(readStart(fd, 48)))
	if err != nil {
		return ""
	}
	if now, err := proc.Started(pid); err != nil || now != start {
		return "by processes of a command whose ration run has ended"
	}
	// If the file is another user's, the PID may be any running process's.
	var st unix.Stat_t
	own := unix.Fstat(fd, &st) == nil && (st.Uid == 0 || int(st.Uid) == os.Geteuid())
	return fmt.Sprintf("by a command that pid %s started", humanfmt.Claim(strconv.Itoa(pid), own))
}

// parseLauncher parses what writePID wrote.
func parseLauncher(text string) (pid int, start uint64, err error) {
	first, second, _ := strings.Cut(strings.TrimSuffix(text, "\n"), " ")
	if pid, err = strconv.Atoi(first); err != nil {
		return 0, 0, err
	}
	start, err = strconv.ParseUint(second, 10, 64)
	return pid, start, err
}

// removeContents removes everything from the job's folder except the locked file. The lock must be
// exclusive.
func (l *Lock) removeContents() error {
	endLimits(l.Folder)
	unmount(l.Folder)
	_ = removeRegionOf(l.Folder) // if this fails, removing it below does too
	entries, err := os.ReadDir(l.Folder)
	if err != nil {
		return fmt.Errorf("clearing %s: %w", l.Folder, err)
	}
	for _, e := range entries {
		if e.Name() == aliveName {
			continue
		}
		if err := os.RemoveAll(filepath.Join(l.Folder, e.Name())); err != nil {
			return fmt.Errorf("clearing %s: %w (remove it)", l.Folder, err)
		}
	}
	return nil
}

// Share converts an exclusive lock into a shared one, so that others can Join. The job has all its files.
func (l *Lock) Share() error {
	keepFromAging(l.Folder)
	if err := l.set(shared); err != nil {
		return fmt.Errorf("sharing job %s: %w", l.Job.Name, err)
	}
	return nil
}

// Inherit opens a descriptor with a shared lock, which all programs that this process starts or becomes
// inherit until stop is called. The lock is not l, so that RemoveIfUnused can find whether one of them
// still runs.
func (l *Lock) Inherit() (stop func(), err error) {
	f, err := HandOn(l.Job)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return InheritFile(f)
}

// HandOn opens a descriptor with a shared lock on a job. The job is in use until all copies of the
// descriptor, in any process, are closed.
func HandOn(j Job) (*os.File, error) {
	// Read-only: the command must not be able to write into the folder of jobs.
	path := filepath.Join(filepath.Dir(j.Path), aliveName)
	fd, err := safepath.Open(path, unix.O_RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("handing on job %s: %w", j.Name, err)
	}
	lock := wholeFile(shared)
	if err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &lock); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("handing on job %s: %w", j.Name, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// InheritFile makes all programs that this process starts or becomes inherit a file, until stop is called.
func InheritFile(f *os.File) (stop func(), err error) {
	inherited, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD, minInheritedFD)
	if errors.Is(err, unix.EINVAL) { // RLIMIT_NOFILE is lower
		inherited, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD, firstInheritedFD)
	}
	if err != nil {
		return nil, fmt.Errorf("handing on %s: %w", f.Name(), err)
	}
	return func() { _ = unix.Close(inherited) }, nil
}

// Release drops the lock and leaves the job as it is.
func (l *Lock) Release() { _ = l.file.Close() }

// RemoveIfUnused drops the lock, and removes the job if no other process uses it and it is not a standing
// one. It reports whether it removed the job.
func (l *Lock) RemoveIfUnused() bool {
	defer l.Release()
	if l.set(exclusive) != nil {
		return false
	}
	u, _ := inspect(l.Job)
	return len(u.living) == 0 && !u.locked && !isStanding(l.Job) && removeFolder(l.Folder) == nil
}
