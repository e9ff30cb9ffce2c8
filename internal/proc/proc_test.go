package proc

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestStopped(t *testing.T) {
	cmd := exec.Command("cat")
	if _, err := cmd.StdinPipe(); err != nil { // it ends with the pipe, or with us
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	for _, c := range []struct {
		signal unix.Signal
		wait   int
		want   bool
	}{{unix.SIGSTOP, unix.WUNTRACED, true}, {unix.SIGCONT, unix.WCONTINUED, false}} {
		if err := unix.Kill(pid, c.signal); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Wait4(pid, nil, c.wait, nil); err != nil {
			t.Fatal(err)
		}
		if got := Stopped(pid); got != c.want {
			t.Errorf("after %v: stopped is %v", c.signal, got)
		}
	}
	if Stopped(-1) {
		t.Error("a process that is not there is stopped")
	}
}

// The PID that a process has in its own namespace is found behind however many groups it is in.
func TestOwnerWithManyGroups(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root puts a process into groups")
	}
	groups := make([]uint32, 65536)
	for i := range groups {
		groups[i] = 4_000_000_000 + uint32(i)
	}
	cmd := exec.Command("cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 61000, Gid: 61000, Groups: groups}}
	if _, err := cmd.StdinPipe(); err != nil { // it ends with the pipe, or with us
		t.Fatal(err)
	}
	if err := cmd.Start(); errors.Is(err, unix.EINVAL) {
		t.Skip("this kernel, or an emulator, takes fewer groups")
	} else if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	uid, name, own, err := Owner(cmd.Process.Pid)
	if uid != 61000 || name != "cat" || own != cmd.Process.Pid || err != nil {
		t.Errorf("user %d, %s, pid %d, %v", uid, name, own, err)
	}
}

func TestUserName(t *testing.T) {
	const nobodys = 1<<31 - 7
	for range 2 { // the second time it is remembered
		if root, none := UserName(0), UserName(nobodys); root != "root" || none != strconv.Itoa(nobodys) {
			t.Errorf("got %q and %q", root, none)
		}
	}
}
