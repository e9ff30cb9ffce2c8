package privsep

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/termtext"
)

// RunAs runs a command as another user, if this process is root's, and waits for it. The command gets only the
// environment and the standard input that cmd names, and no other descriptor of this process. It has a session
// of its own, without a terminal that it could type into. The kernel kills it if this process is killed. When it
// ends, or is stopped, or the context ends, its whole process group is killed. The user can take its output and
// keep it open: so the wait is bounded, and only the beginning of the output is kept. Its standard output is part
// of the error, unless cmd.Stdout has another place for it, which must not be a file.
//
// The user can also keep a killed process from ending, or this process from seeing that: a file system (FUSE) that does
// not answer does the one, and a tracer that does not wait for it the other. Then the error is ErrUnended. Such a
// process takes a thread of this one until it ends, so a user gets no more than maxUnended of them.
func RunAs(ctx context.Context, cmd *exec.Cmd, uid, gid uint32) error {
	return runFor(ctx, cmd, uid, gid, uid)
}

// RunFor is RunAs for a command that stays root's until it becomes the user's by itself (Become).
func RunFor(ctx context.Context, cmd *exec.Cmd, user uint32) error {
	return runFor(ctx, cmd, 0, 0, user)
}

// ErrUnended is returned for a process that was killed, and has not ended.
var ErrUnended = errors.New("it was killed, and does not end: its user's file system or tracer keeps it")

// maxUnended bounds the processes of one user that were killed and have not ended.
const maxUnended = 4

// unendedAfter is how long the end of a killed process is awaited.
var unendedAfter = 5 * time.Second

// unended has how many of these processes users have.
var unended struct {
	sync.Mutex
	of map[uint32]int
}

// addUnended counts such processes of a user, and returns how many there are.
func addUnended(user uint32, n int) int {
	unended.Lock()
	defer unended.Unlock()
	if unended.of == nil {
		unended.of = map[uint32]int{}
	}
	if unended.of[user] += n; unended.of[user] == 0 {
		delete(unended.of, user)
		return 0
	}
	return unended.of[user]
}

func runFor(ctx context.Context, cmd *exec.Cmd, uid, gid, user uint32) error {
	if addUnended(user, 0) >= maxUnended {
		return fmt.Errorf("%w: user %d has %d such processes", ErrUnended, user, maxUnended)
	}
	killed, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- runCommand(ctx, cmd, uid, gid, sync.OnceFunc(func() { close(killed) })) }()
	select {
	case err := <-ended:
		return err
	case <-killed:
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(unendedAfter):
	}
	addUnended(user, 1)
	go func() {
		<-ended
		addUnended(user, -1)
	}()
	return errors.Join(ctx.Err(), ErrUnended)
}

// runCommand does what RunAs says, and calls killed when it has killed the command. It returns when that has ended.
func runCommand(ctx context.Context, cmd *exec.Cmd, uid, gid uint32, killed func()) error {
	if err := closeOnExec(); err != nil {
		return err
	}
	out := &FirstBytes{Most: 1 << 10}
	if cmd.Stdout == nil {
		cmd.Stdout = out
	}
	cmd.Stderr, cmd.WaitDelay, cmd.Dir = out, time.Second, "/"
	if cmd.Env == nil {
		cmd.Env = []string{} // nil is the environment of this process
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
	if os.Geteuid() == 0 && uid != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: gid}
	}
	// The kernel kills the process when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := NewKeyring(); err != nil { // for this thread, which needs none
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	killGroup := func() {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) // it fails if all have ended
		killed()
	}
	stop := context.AfterFunc(ctx, killGroup)
	stopped := waitEnded(cmd.Process.Pid)
	if stop() {
		killGroup() // the PID stays in use until Wait
	}
	err := cmd.Wait()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = errors.Join(ctx.Err(), err)
	}
	if stopped {
		err = fmt.Errorf("%w: %w", ErrStopped, err)
	}
	if text := strings.TrimSpace(string(out.Bytes)); text != "" {
		return fmt.Errorf("%w: %s", err, termtext.Printable(strings.ReplaceAll(text, "\n", "; ")))
	}
	return err
}

// Become makes this process, which root has started by RunAs, the user's for good. The user cannot trace it: the kernel
// lets no user read the memory of a process that has changed its user since it executed its program. So the user cannot
// have it start processes in the cgroup of a service of root's.
func Become(uid, gid int) error {
	if uid <= 0 || gid <= 0 {
		return fmt.Errorf("becoming user %d of group %d: %w", uid, gid, unix.EINVAL)
	}
	runtime.LockOSThread() // the signal comes only as long as the thread that asked for it lives
	parent := os.Getppid()
	if err := errors.Join(syscall.Setgroups([]int{}), syscall.Setresgid(gid, gid, gid), syscall.Setresuid(uid, uid, uid)); err != nil {
		return fmt.Errorf("becoming user %d: %w", uid, err)
	}
	// The kernel has forgotten that it is to kill this process when its parent ends.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("asking to end with the parent: %w", err)
	}
	if os.Getppid() != parent {
		return errors.New("the parent has ended")
	}
	return nil
}

// ErrStopped is returned for a process that its user has stopped.
var ErrStopped = errors.New("it was stopped, and then killed")

// waitEnded waits until a child has ended or was stopped, and leaves its PID in use.
func waitEnded(pid int) (stopped bool) {
	var info unix.Siginfo
	for errors.Is(unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WSTOPPED|unix.WNOWAIT, nil), unix.EINTR) {
	}
	return info.Code == cldStopped
}

// cldStopped is CLD_STOPPED of <signal.h>, a reason for SIGCHLD.
const cldStopped = 5

// FirstBytes keeps the first bytes that are written to it.
type FirstBytes struct {
	Most  int // bytes that are kept
	Bytes []byte
}

func (b *FirstBytes) Write(text []byte) (int, error) {
	b.Bytes = append(b.Bytes, text[:min(len(text), b.Most-len(b.Bytes))]...)
	return len(text), nil
}
