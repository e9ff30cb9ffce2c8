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
)

// A job is more than the processes that have slots: a program may spend minutes on
// its imports before it first asks for a device. So whoever launches a job keeps a
// lock on the file `alive` in its folder, through a descriptor that the command and
// its children inherit. The lock belongs to the open file (F_OFD_SETLK), goes on
// across fork and exec, and is gone when the last of them is, however it ended.
//
//	exclusive  the job is being made, or taken apart
//	shared     it is in use
//
// Turning one into the other is one step, so nobody slips in between.

// ErrInUse is returned for a job that lives.
var ErrInUse = errors.New("in use")

const (
	aliveName = "alive"
	exclusive = unix.F_WRLCK
	shared    = unix.F_RDLCK
)

// lowest is where inherited descriptors go: programs may count on small numbers.
const lowest = 100

// Hold is a lock on a job.
type Hold struct {
	Job    Job
	Folder string
	file   *os.File
}

// Begin takes a name for a new job, and clears away what an ended job of that name
// has left.
func Begin(name string) (*Hold, error) {
	h, err := hold(name, exclusive)
	if err != nil {
		return nil, err
	}
	s := Look(h.Job, false)
	for _, p := range s.Processes {
		if p.State != Dead {
			h.Release()
			return nil, inUse(name, fmt.Sprintf("by pid %d (%s)", p.PID, p.Name))
		}
	}
	if err := h.clear(); err != nil {
		h.Release()
		return nil, err
	}
	if err := h.sign(); err != nil {
		h.Release()
		return nil, err
	}
	return h, nil
}

// patience is how long Join waits while somebody else makes the job.
const patience = 10 * time.Second

// Join takes a share of a job that lives. Where none does, it is ErrNoJob, and the
// caller may Begin one.
func Join(name string) (*Hold, error) {
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		h, err := hold(name, shared)
		if err == nil {
			if exists(h.Job.Path) {
				return h, nil
			}
			h.Release()
			return nil, fmt.Errorf("%s: %w", name, ErrNoJob)
		}
		if !errors.Is(err, ErrInUse) || time.Since(began) > patience {
			return nil, err
		}
	}
}

// Running says whether anybody holds the job: its launcher, the command it became,
// or a child of either.
func Running(j Job) bool {
	fd, err := unix.Open(filepath.Join(filepath.Dir(j.Path), aliveName), unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	l := whole(exclusive)
	return unix.FcntlFlock(uintptr(fd), unix.F_OFD_GETLK, &l) == nil && l.Type != unix.F_UNLCK
}

func whole(kind int16) unix.Flock_t { return unix.Flock_t{Type: kind, Whence: 0} }

// hold locks a job's folder, made if missing.
func hold(name string, kind int16) (*Hold, error) {
	for {
		region, err := Make(name)
		if err != nil {
			return nil, err
		}
		folder := filepath.Dir(region)
		path := filepath.Join(folder, aliveName)
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the folder was removed under our feet
		}
		if err != nil {
			return nil, fmt.Errorf("locking job %s: opening %s: %w (remove it)", name, path, err)
		}
		h := &Hold{Job{name, region}, folder, os.NewFile(uintptr(fd), path)}
		l := whole(kind)
		err = unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &l)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			who := h.signature()
			h.Release()
			return nil, inUse(name, who)
		}
		if err != nil {
			h.Release()
			return nil, fmt.Errorf("locking job %s: %w (does the file system of %s have locks?)", name, err, folder)
		}
		// Somebody may have removed the folder between the open and the lock; then
		// this lock is on a file that nobody else will find.
		own, err := h.file.Stat()
		there, err2 := os.Lstat(path)
		if err == nil && err2 == nil && os.SameFile(own, there) {
			return h, nil
		}
		h.Release()
	}
}

func inUse(name, who string) error {
	if who != "" {
		who = " " + who
	}
	return fmt.Errorf("job %s: %w%s (choose another --name, or share its limit with --join)", name, ErrInUse, who)
}

// sign leaves the PID for people; nothing is decided by it.
func (h *Hold) sign() error {
	if err := h.file.Truncate(0); err != nil {
		return fmt.Errorf("locking job %s: %w", h.Job.Name, err)
	}
	if _, err := h.file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return fmt.Errorf("locking job %s: %w", h.Job.Name, err)
	}
	return nil
}

func (h *Hold) signature() string {
	var buf [24]byte
	n, _ := h.file.ReadAt(buf[:], 0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(buf[:n])))
	if err != nil {
		return ""
	}
	return fmt.Sprintf("by what pid %d started", pid)
}

// clear removes all but the lock. Only with an exclusive hold.
func (h *Hold) clear() error {
	entries, err := os.ReadDir(h.Folder)
	if err != nil {
		return fmt.Errorf("clearing %s: %w", h.Folder, err)
	}
	for _, e := range entries {
		if e.Name() == aliveName {
			continue
		}
		if err := os.RemoveAll(filepath.Join(h.Folder, e.Name())); err != nil {
			return fmt.Errorf("clearing %s: %w (remove it)", h.Folder, err)
		}
	}
	return nil
}

// Share lets others join.
func (h *Hold) Share() error {
	l := whole(shared)
	if err := unix.FcntlFlock(h.file.Fd(), unix.F_OFD_SETLK, &l); err != nil {
		return fmt.Errorf("sharing job %s: %w", h.Job.Name, err)
	}
	return nil
}

// Inherit hands a share to whatever this process becomes or starts, until it calls
// what is returned. The share is a lock of its own, so that End can tell whether
// it is still in use.
func (h *Hold) Inherit() (stop func(), err error) {
	fd, err := unix.Open(h.file.Name(), unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("handing on job %s: %w", h.Job.Name, err)
	}
	defer unix.Close(fd)
	l := whole(shared)
	if err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &l); err != nil {
		return nil, fmt.Errorf("handing on job %s: %w", h.Job.Name, err)
	}
	high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD, lowest)
	if err != nil {
		return nil, fmt.Errorf("handing on job %s: %w", h.Job.Name, err)
	}
	return func() { _ = unix.Close(high) }, nil
}

// Release lets go of the job, and leaves all as it is.
func (h *Hold) Release() { _ = h.file.Close() }

// End removes the job if nobody else uses it, and says whether it did.
func (h *Hold) End() bool {
	defer h.Release()
	l := whole(exclusive)
	if unix.FcntlFlock(h.file.Fd(), unix.F_OFD_SETLK, &l) != nil {
		return false
	}
	s := Look(h.Job, false)
	if len(s.living()) > 0 {
		return false
	}
	return os.RemoveAll(h.Folder) == nil
}
