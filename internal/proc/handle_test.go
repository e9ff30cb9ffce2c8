package proc

import (
	"errors"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// A handle stays with its process: alive, a zombie, gone.
func TestHandle(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h, err := Open(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if !h.Alive() || h.PID() != cmd.Process.Pid {
		t.Errorf("pid %d, alive: %v", h.PID(), h.Alive())
	}
	if err := h.Signal(unix.SIGKILL); err != nil {
		t.Error(err)
	}
	// Wait until it has ended, and leave it a zombie.
	fds := []unix.PollFd{{Fd: int32(h.fd), Events: unix.POLLIN}}
	for {
		if n, err := unix.Poll(fds, -1); n == 1 || !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if h.Alive() {
		t.Error("a zombie lives")
	}
	if zombie, err := Open(cmd.Process.Pid); err == nil {
		if zombie.Alive() {
			t.Error("a zombie that was opened lives")
		}
		_ = zombie.Close()
	}
	_ = cmd.Wait()
	if err := h.Signal(unix.SIGTERM); !errors.Is(err, ErrEnded) {
		t.Errorf("signal to a process that has gone: %v", err)
	}
	if _, err := Open(cmd.Process.Pid); !errors.Is(err, ErrEnded) {
		t.Errorf("opening a process that has gone: %v", err)
	}
}
