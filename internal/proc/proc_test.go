package proc

import (
	"errors"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/check/testenv"
)

// The PID that a process has in its own namespace is found behind however many groups it is in.
func TestOwnerWithManyGroups(t *testing.T) {
	testenv.NeedsRoot(t, "only root puts a process into groups")
	groups := make([]uint32, 65536)
	for i := range groups {
		groups[i] = 4_000_000_000 + uint32(i)
	}
	cmd := exec.Command("cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 61000, Gid: 61000, Groups: groups}}
	_, err := cmd.StdinPipe()
	expect.OK(t, err) // it ends with the pipe, or with us
	if err := cmd.Start(); errors.Is(err, unix.EINVAL) {
		t.Skip("this kernel, or an emulator, takes fewer groups")
	} else if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	uid, name, own, err := Owner(cmd.Process.Pid)
	expect.True(t, uid == 61000 && name == "cat" && own == cmd.Process.Pid && err == nil, "user", uid, name, "pid", own, err)
}

func TestUserName(t *testing.T) {
	const nobodys = 1<<31 - 7
	for range 2 { // the second time it is remembered
		root, none := UserName(0), UserName(nobodys)
		expect.True(t, root == "root" && none == strconv.Itoa(nobodys), root, none)
	}
}
