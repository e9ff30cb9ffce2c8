package agent

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"ration/internal/connlimit"
	"ration/internal/job"
)

// firstPassed is the first descriptor that systemd passes.
const firstPassed = 3

// passedSocket returns the listening socket that systemd has passed to this process
// (sd_listen_fds(3)), or nil if systemd passed none. It must be the socket at path, because clients
// use no other. systemd made the file and keeps the socket open: closing the listener does not
// remove the file, and clients that connect later wait for the next agent. passedSocket removes
// systemd's environment variables, so that child processes do not see them.
func passedSocket(path string) (*net.UnixListener, error) {
	pid, count := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS")
	for _, name := range []string{"LISTEN_PID", "LISTEN_PIDFDID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		if err := os.Unsetenv(name); err != nil {
			return nil, err
		}
	}
	if pid != strconv.Itoa(os.Getpid()) || count == "0" {
		return nil, nil // inherited variables: they were meant for another process
	}
	if count != "1" {
		return nil, fmt.Errorf("taking the socket from systemd: LISTEN_FDS=%q: the agent takes one socket (ration-agent.socket has one ListenStream)", count)
	}
	unix.CloseOnExec(firstPassed)
	if err := checkPassed(firstPassed, path); err != nil {
		return nil, fmt.Errorf("taking the socket from systemd: %w (ration-agent.socket has ListenStream=%s)", err, path)
	}
	l, err := listenerOf(firstPassed, path)
	if err != nil {
		return nil, fmt.Errorf("taking the socket from systemd: %w", err)
	}
	return l, nil
}

// listenerOf returns a listener on a copy of fd. It closes fd.
func listenerOf(fd int, path string) (*net.UnixListener, error) {
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	l, err := net.FileListener(file)
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}

// ListenAt returns the agent's socket from a descriptor that the parent process has passed. The
// parent removes the file later.
func ListenAt(fd int, folder string) (net.Listener, error) {
	path := filepath.Join(folder, job.AgentSocket)
	unix.CloseOnExec(fd)
	if err := checkPassed(fd, path); err != nil {
		return nil, fmt.Errorf("taking the agent's socket: %w", err)
	}
	l, err := listenerOf(fd, path)
	if err != nil {
		return nil, fmt.Errorf("taking the agent's socket: %w", err)
	}
	return newListener(l), nil
}

// checkPassed returns an error if fd is not a socket that listens at path.
func checkPassed(fd int, path string) error {
	for _, option := range []struct {
		name, want int
		wrong      string
	}{
		{unix.SO_DOMAIN, unix.AF_UNIX, "it is not a Unix socket"},
		{unix.SO_TYPE, unix.SOCK_STREAM, "it is not a stream"},
		{unix.SO_ACCEPTCONN, 1, "it does not listen"},
	} {
		got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option.name)
		if err != nil {
			return fmt.Errorf("descriptor %d: %w", fd, err)
		}
		if got != option.want {
			return errors.New(option.wrong)
		}
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	at, is := name.(*unix.SockaddrUnix)
	if !is {
		return errors.New("it is not a Unix socket")
	}
	if filepath.Clean(at.Name) != filepath.Clean(path) {
		return fmt.Errorf("it is at %q", at.Name)
	}
	return nil
}

// isListening reports whether a process listens on the socket at path.
func isListening(path string) bool {
	c, err := connlimit.Dial(path, dialTimeout)
	if err == nil {
		_ = c.Close()
	}
	return err == nil || connlimit.Full(err)
}
