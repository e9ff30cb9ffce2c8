package harness

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// NewPIDs starts the worker as the first process of a PID namespace of its own.
// Without the rights of root that takes a user namespace as well, in which it
// keeps its user.
func NewPIDs() Option {
	return func(c *exec.Cmd) {
		c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWPID
		if uid := os.Geteuid(); uid != 0 {
			c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
			c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
			c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
		}
	}
}

// NeedPIDs skips a test where the kernel does not let this user make a PID
// namespace.
func NeedPIDs(t testing.TB) {
	t.Helper()
	w, err := TryStart(t, tongues[0].Plain, NewPIDs())
	if err != nil {
		t.Skipf("no PID namespace to be had here: %v", err)
	}
	w.Kill()
}

// firstPIDs is the inode of the first PID namespace, the host's.
const firstPIDs = 0xEFFFFFFC

// NeedHost skips a test where this process itself is in a PID namespace, and
// host PIDs are none of its business.
func NeedHost(t testing.TB) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil || st.Ino != firstPIDs {
		t.Skipf("not in the first PID namespace but in %d (%v)", st.Ino, err)
	}
}

// StartBeside starts a worker in the PID namespace of another. Only root may:
// entering the namespace of an ordinary user means entering its user namespace,
// which a process with several threads cannot.
func StartBeside(t testing.TB, w *Worker, path string) (beside *Worker) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can enter another process's PID namespace")
	}
	// The namespace of children belongs to the thread, so nobody else may run on it
	// until it is as it was.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	enter := func(pid int) error {
		fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/pid", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Setns(fd, unix.CLONE_NEWPID)
	}
	if err := enter(w.PID()); err != nil {
		t.Fatalf("entering the PID namespace of %d: %v", w.PID(), err)
	}
	// It dies with the namespace's first process. Its parent it cannot see, so it
	// would take it for dead already.
	beside, err := TryStart(t, path, func(c *exec.Cmd) { c.SysProcAttr.Pdeathsig = 0 })
	if back := enter(os.Getpid()); back != nil {
		t.Fatalf("coming back from it: %v", back)
	}
	if err != nil {
		t.Fatal(err)
	}
	return beside
}
