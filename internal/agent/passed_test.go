package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
)

// Sockets that were passed to another process are not taken, and no child hears of any.
func TestPassedToAnother(t *testing.T) {
	t.Setenv("LISTEN_PID", fmt.Sprint(os.Getppid()))
	t.Setenv("LISTEN_PIDFDID", "1")
	t.Setenv("LISTEN_FDS", "1")
	t.Setenv("LISTEN_FDNAMES", "ration-agent.socket")
	l, err := passedSocket("agent.sock")
	expect.True(t, l == nil && err == nil, l, err)
	for _, entry := range os.Environ() {
		expect.True(t, !strings.HasPrefix(entry, "LISTEN_"), "children get", entry)
	}
}

// Whoever answers in the end, a client believes who listens: a socket whose file is root's, and at which
// another user listens, is none.
func TestBelievesWhoListens(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	for uid, believed := range map[int]bool{0: true, 61000: false} {
		path := filepath.Join(t.TempDir(), "agent.sock")
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		expect.OK(t, err)
		defer unix.Close(fd)
		expect.OK(t, unix.Bind(fd, &unix.SockaddrUnix{Name: path}))
		listened := make(chan error)
		go func() {
			runtime.LockOSThread() // for good: the thread ends with this function
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
				listened <- errno
				return
			}
			listened <- unix.Listen(fd, 1)
		}()
		expect.OK(t, <-listened)
		c, err := dial(path)
		if err == nil {
			_ = c.Close()
		}
		expect.True(t, (err == nil) == believed && (err == nil || errors.Is(err, ErrNone)), "user", uid, "listens", err)
	}
}
