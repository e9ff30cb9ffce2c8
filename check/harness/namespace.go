package harness

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/child"
)

// NewPIDs starts the worker as the first process of a PID namespace of its own. If
// this user is not root, that needs a user namespace as well, in which the worker
// keeps its user.
func NewPIDs() Option {
	return func(c *exec.Cmd) {
		c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWPID
		if uid, gid := os.Geteuid(), os.Getegid(); uid != 0 {
			c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
			c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
			c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
		}
	}
}

// NeedPIDs skips a test if the kernel does not let this user make a PID namespace.
func NeedPIDs(t testing.TB) {
	t.Helper()
	w, err := TryStart(t, impls[0].Plain, NewPIDs())
	if err != nil {
		t.Skipf("cannot make a PID namespace: %v", err)
	}
	w.Kill()
}

// hostPIDs is the inode of the host's PID namespace.
const hostPIDs = 0xEFFFFFFC

// NeedHost skips a test if this process itself is in another PID namespace than the
// host's, and does not know host PIDs.
func NeedHost(t testing.TB) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil || st.Ino != hostPIDs {
		t.Skipf("in PID namespace %d, not the host's (%v)", st.Ino, err)
	}
}

// StartBeside starts a worker in the PID namespace of another one. Only root may: an
// ordinary user would have to enter the user namespace of the other, which a process
// with several threads cannot.
func StartBeside(t testing.TB, w *Worker, path string, options ...Option) *Worker {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can enter another process's PID namespace")
	}
	beside, err := start(t, child.Spec{Name: "worker", Cmd: exec.Command(path), Beside: w.PID()}, options...)
	if err != nil {
		t.Fatal(err)
	}
	return beside
}
