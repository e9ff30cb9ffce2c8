package privsep

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/termtext"
)

// RunAs runs a command as another user, if this process is root's, and waits for it. The command gets only the
// environment and the standard input that cmd names. It has a session of its own, without a terminal that it
// could type into. The kernel kills it if this process is killed. When it ends, or the context does, its whole
// process group is killed. The user can stop it, or take its output and keep it open: so the wait is bounded,
// and only the beginning of the output is kept, for the error.
func RunAs(ctx context.Context, cmd *exec.Cmd, uid, gid uint32) error {
	var out firstBytes
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay, cmd.Dir = &out, &out, time.Second, "/"
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
	killGroup := func() { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) } // it fails if all have ended
	stop := context.AfterFunc(ctx, killGroup)
	waitEnded(cmd.Process.Pid)
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
	if text := strings.TrimSpace(string(out)); text != "" {
		return fmt.Errorf("%w: %s", err, termtext.Printable(text))
	}
	return err
}

// waitEnded waits until a child has ended, and leaves its PID in use.
func waitEnded(pid int) {
	for errors.Is(unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
}

// firstBytes keeps the first bytes that are written to it.
type firstBytes []byte

func (b *firstBytes) Write(text []byte) (int, error) {
	const most = 400
	*b = append(*b, text[:min(len(text), most-len(*b))]...)
	return len(text), nil
}
