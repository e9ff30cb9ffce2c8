package proc

import (
	"errors"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
)

// A handle stays with its process: alive, a zombie, gone.
func TestHandle(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	expect.OK(t, cmd.Start())
	h, err := Open(cmd.Process.Pid)
	expect.OK(t, err)
	defer h.Close()
	expect.True(t, h.Alive() && h.PID() == cmd.Process.Pid, "pid", h.PID(), "alive", h.Alive())
	expect.Equal(t, h.Signal(unix.SIGKILL), nil)
	// Wait until it has ended, and leave it a zombie.
	fds := []unix.PollFd{{Fd: int32(h.fd), Events: unix.POLLIN}}
	for {
		if n, err := unix.Poll(fds, -1); n == 1 || !errors.Is(err, unix.EINTR) {
			break
		}
	}
	expect.True(t, !h.Alive(), "a zombie lives")
	if zombie, err := Open(cmd.Process.Pid); err == nil {
		expect.True(t, !zombie.Alive(), "a zombie that was opened lives")
		_ = zombie.Close()
	}
	_ = cmd.Wait()
	err = h.Signal(unix.SIGTERM)
	expect.True(t, errors.Is(err, ErrEnded), "signal to a process that has gone", err)
	_, err = Open(cmd.Process.Pid)
	expect.True(t, errors.Is(err, ErrEnded), "opening a process that has gone", err)
}
