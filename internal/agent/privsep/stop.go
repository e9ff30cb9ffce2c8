package privsep

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"ration/internal/job"
	"ration/internal/proc"
	"ration/internal/region"
)

// MaxStop bounds the processes of one request to end some.
const MaxStop = 64

// Stop is a request to end processes of a job that is over its limit.
type Stop struct {
	Region    string // path of the job's region, in root's folder of jobs
	UID       int    // user of all these processes
	Processes []Target
	Kill      bool // by SIGKILL; otherwise by SIGTERM
}

// Target is a process: the one with that PID that started then (proc.Started).
type Target struct {
	PID     int    `json:"pid"`
	Started uint64 `json:"started"`
}

// Signal returns the signal.
func (s *Stop) Signal() syscall.Signal {
	if s.Kill {
		return syscall.SIGKILL
	}
	return syscall.SIGTERM
}

// noUser is a UID that no user has: -1 in the 16 bits that UIDs once had.
const noUser = 1<<16 - 1

// rootFolder is a variable for tests.
var rootFolder = job.RootFolder

// Do sends the signal, as the processes' user, and returns the PIDs that got it. It believes nothing of the
// request, which an attacker may have sent: the kernel says whose each process is, and that it belongs to the
// job. Facts are read while a handle is open, and count only if the process is alive afterwards, so a PID that
// becomes another process's between the two is noticed. The error says which processes got no signal, and why.
func (s *Stop) Do() (signalled []int, err error) {
	belongs, err := s.check()
	if err != nil {
		return nil, err
	}
	var open []*proc.Handle
	var errs []error
	defer func() {
		for _, h := range open {
			_ = h.Close()
		}
	}()
	for _, t := range s.Processes {
		h, err := proc.Open(t.PID)
		if errors.Is(err, proc.ErrEnded) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		err = s.checkProcess(t, belongs)
		switch alive := h.Alive(); {
		case alive && err == nil:
			open = append(open, h)
			continue
		case alive:
			errs = append(errs, fmt.Errorf("process %d: %w", t.PID, err))
		}
		_ = h.Close()
	}
	signalled, err = signalAs(uint32(s.UID), open, s.Signal())
	return signalled, errors.Join(append(errs, err)...)
}

// check checks what a request says of the job. belongs reports whether the kernel says that a process of the
// request's user is the job's.
func (s *Stop) check() (belongs func(pid int) bool, err error) {
	folder, file := filepath.Split(s.Region)
	name := filepath.Base(folder)
	switch {
	case s.UID <= 0 || s.UID >= math.MaxUint32 || s.UID == noUser:
		return nil, fmt.Errorf("%w: no process of user %d is ended (root's processes are left to root)", ErrRefused, s.UID)
	case len(s.Processes) == 0 || len(s.Processes) > MaxStop:
		return nil, fmt.Errorf("%w: %d processes (1 to %d are allowed)", ErrRefused, len(s.Processes), MaxStop)
	case len(s.Region) > maxPath || file != job.RegionName || filepath.Join(rootFolder, name, file) != s.Region:
		return nil, fmt.Errorf("%w: %.200q is no region in root's folder of jobs", ErrRefused, s.Region)
	}
	var st unix.Stat_t
	if err := unix.Lstat(s.Region, &st); err != nil {
		return nil, fmt.Errorf("looking for the job: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("%w: %.200q is no region", ErrRefused, s.Region)
	}
	if owner, is := job.UserOf(name); is && owner == s.UID {
		return func(int) bool { return true }, nil // under a policy all processes of the user are in this job
	} else if is {
		return nil, fmt.Errorf("%w: the job is not user %d's", ErrRefused, s.UID)
	}
	if owner, _, is := job.RunOf(name); is && owner != s.UID {
		return nil, fmt.Errorf("%w: the run is not user %d's", ErrRefused, s.UID)
	}
	key := region.FileKey{Dev: st.Dev, Ino: st.Ino}
	return func(pid int) bool { return region.Kernel{}.HasLock(pid, key) }, nil
}

// checkProcess checks what the kernel says of a process. The caller has a handle of it.
func (s *Stop) checkProcess(t Target, belongs func(pid int) bool) error {
	started, err := proc.Started(t.PID)
	if err != nil {
		return err
	}
	uid, one, err := proc.OnlyUser(t.PID)
	switch {
	case err != nil:
		return err
	case started != t.Started:
		return fmt.Errorf("%w: it has started at another time", ErrRefused)
	case uid != s.UID || !one:
		return fmt.Errorf("%w: it is not only user %d's", ErrRefused, s.UID)
	case !belongs(t.PID):
		return fmt.Errorf("%w: it is not in the job", ErrRefused)
	}
	return nil
}

// signalAs sends a signal with the rights of a user. A thread of its own does it, which has no other right,
// so the kernel refuses it for a process that has become another user's. It is not a process of the
// user: the user could kill that one first. Its real UID is nobody's, so the user cannot send it a signal
// either.
func signalAs(uid uint32, to []*proc.Handle, signal syscall.Signal) (signalled []int, err error) {
	if len(to) == 0 {
		return nil, nil
	}
	onOwnThread(func() {
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, noUser, uintptr(uid), noUser); errno != 0 {
			err = fmt.Errorf("acting as user %d: %w", uid, errno)
			return
		}
		var errs []error
		for _, h := range to {
			switch err := h.Signal(signal); {
			case err == nil:
				signalled = append(signalled, h.PID())
			case !errors.Is(err, proc.ErrEnded):
				errs = append(errs, fmt.Errorf("sending %s to process %d: %w", unix.SignalName(signal), h.PID(), err))
			}
		}
		err = errors.Join(errs...)
	})
	return signalled, err
}

// onOwnThread calls f on a thread that ends after it. That is never the main thread, which would stay as f
// leaves it: it ends only with the process.
func onOwnThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			onOwnThread(f) // on another thread, because this one is taken
			runtime.UnlockOSThread()
			return
		}
		f() // the thread is never unlocked: it ends with this function
	}()
	<-done
}
