package proc

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrEnded is returned for a process that has ended.
var ErrEnded = errors.New("the process has ended")

// Handle refers to one process. After that process has ended, a signal to the handle reaches no
// process, even if another one has its PID. Facts that were read by PID while the handle was open
// belong to this process if Alive is true afterwards.
type Handle struct {
	pid, fd int
}

// Open returns a handle of the process that has a PID now.
func Open(pid int) (*Handle, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	switch {
	case errors.Is(err, unix.ESRCH):
		return nil, fmt.Errorf("opening process %d: %w", pid, ErrEnded)
	case err != nil: // or a thread that is not a process leader, or a kernel before 5.3
		return nil, fmt.Errorf("opening process %d: %w", pid, err)
	}
	return &Handle{pid, fd}, nil
}

// PID returns the PID that the process was opened by.
func (h *Handle) PID() int { return h.pid }

// Alive reports whether the process is alive, even a process of another user. A zombie is not.
func (h *Handle) Alive() bool {
	fds := []unix.PollFd{{Fd: int32(h.fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if !errors.Is(err, unix.EINTR) {
			return err == nil && n == 0
		}
	}
}

// Signal sends a signal to the process.
func (h *Handle) Signal(signal syscall.Signal) error {
	err := unix.PidfdSendSignal(h.fd, signal, nil, 0)
	switch {
	case errors.Is(err, unix.ESRCH):
		return ErrEnded
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("it is not yours: %w", os.ErrPermission)
	}
	return err
}

// Close closes the handle.
func (h *Handle) Close() error { return unix.Close(h.fd) }
