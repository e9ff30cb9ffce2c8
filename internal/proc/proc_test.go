package proc

import (
	"errors"
	"os/exec"
	"os/user"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

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

// A UID that is another user's by now has that name within a minute. The user database is not asked more often, and a
// query that fails, or does not end, changes nothing.
func TestUserNameAgain(t *testing.T) {
	const uid = 1<<31 - 9
	at := time.Now()
	var asked atomic.Int32
	var answer *user.User
	var err error
	hangs := make(chan struct{})
	now, lookUpID = func() time.Time { return at }, func(string) (*user.User, error) { asked.Add(1); return answer, err }
	defer func() { now, lookUpID = time.Now, user.LookupId }()
	is := func(name string, times int32) {
		t.Helper()
		expect.True(t, UserName(uid) == name && asked.Load() == times, UserName(uid), "after", asked.Load(), "queries, not", name, times)
	}
	answer = &user.User{Username: "fred"}
	is("fred", 1)
	answer = &user.User{Username: "gina"}
	at = at.Add(nameFor - 1)
	is("fred", 1)
	at = at.Add(1)
	is("gina", 2)
	err = errors.New("the directory service is down")
	at = at.Add(nameFor)
	is("gina", 3)
	err = user.UnknownUserIdError(uid)
	at = at.Add(nameFor)
	is(strconv.Itoa(uid), 4)
	answer, err = &user.User{Username: "hugo"}, nil
	lookUpID = func(string) (*user.User, error) { asked.Add(1); <-hangs; return answer, nil }
	at = at.Add(nameFor)
	is(strconv.Itoa(uid), 5)
	at = at.Add(nameFor)
	is(strconv.Itoa(uid), 5)
	close(hangs)
	for range 1000 {
		if UserName(uid) == "hugo" {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Error("an answer that is late does not count")
}
