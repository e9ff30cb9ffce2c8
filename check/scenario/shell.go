package scenario

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"ration/internal/job"
)

// errStatus is returned for a command that ended with a status other than 0.
var errStatus = errors.New("it ended")

// shell runs commands, each in a process group of its own, which is the terminal's foreground group
// meanwhile. So Ctrl-C ends the command and not the lesson. A terminal that belongs to another session has
// no foreground group for us.
type shell struct {
	jobs       string // folder of its jobs
	environ    []string
	screen     Screen
	controlled bool // screen.In is the controlling terminal of this process
}

// own matches variables that would change the lesson.
var own = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(RATION_|CUDA_|GPU_|FAKEGPU|LIBCUDA_|LOG_LEVEL=|NVIDIA_|LD_PRELOAD=|PATH=)`)
})

// newShell makes a folder with this program as "ration", and a folder for jobs.
func newShell(folder, ration string, screen Screen) (*shell, error) {
	s := &shell{jobs: filepath.Join(folder, "jobs"), screen: screen, controlled: isControlling(screen.In)}
	bin := filepath.Join(folder, "bin")
	if err := errors.Join(os.Mkdir(s.jobs, 0o700), os.Mkdir(bin, 0o700), os.Symlink(ration, filepath.Join(bin, "ration"))); err != nil {
		return nil, fmt.Errorf("making a folder for the lesson: %w", err)
	}
	for _, entry := range os.Environ() {
		if !own().MatchString(entry) {
			s.environ = append(s.environ, entry)
		}
	}
	s.environ = append(s.environ, "PATH="+bin+":"+os.Getenv("PATH"), job.EnvFolder+"="+s.jobs, "FAKEGPU_QUIET=1")
	return s, nil
}

// run runs a line.
func (s *shell) run(line string) error {
	// Ctrl-Z would stop the command, and nothing here could continue it.
	cmd := exec.Command("/bin/sh", "-c", "trap '' TSTP\n"+line)
	cmd.Env = s.environ
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// Use a file, not a pipe: background processes must not block Wait.
	cmd.Stdout, cmd.Stderr = s.screen.File, s.screen.File
	if s.screen.In != nil {
		cmd.Stdin = s.screen.In
	}
	if s.controlled {
		cmd.SysProcAttr.Foreground, cmd.SysProcAttr.Ctty = true, int(s.screen.In.Fd())
		defer takeTerminal(s.screen.In)
	}
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			if status := exit.Sys().(syscall.WaitStatus); status.Signaled() {
				if s.controlled {
					fmt.Fprintln(s.screen.Out) // the terminal has shown ^C, and no end of a line
				}
				return fmt.Errorf("%w by signal %d (%v)", errStatus, status.Signal(), status.Signal())
			}
			return fmt.Errorf("%w with status %d", errStatus, exit.ExitCode())
		}
		return fmt.Errorf("running %s: %w", line, err)
	}
	return nil
}

// isControlling reports whether a file is the controlling terminal of this process. Under su -c and
// setsid it is not: they start a new session, and leave the terminal to the old one.
func isControlling(tty *os.File) bool {
	if tty == nil {
		return false
	}
	_, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil
}

// EndWithParent has the kernel send SIGTERM to this program when its parent ends, if the terminal belongs to
// another session. Ctrl-C does not reach this program then. It reaches su, which ends only the shell that
// started this program.
func (s Screen) EndWithParent() error {
	if s.In == nil || isControlling(s.In) {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGTERM), 0, 0, 0); err != nil {
		return fmt.Errorf("asking for a signal at the parent's end: %w", err)
	}
	return nil
}

// takeTerminal makes this program's process group the terminal's foreground group again. The kernel
// stops a background process that requests this, unless it blocks SIGTTOU.
func takeTerminal(tty *os.File) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var block, before unix.Sigset_t
	block.Val[0] = 1 << (unix.SIGTTOU - 1)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &block, &before); err != nil {
		return
	}
	_ = unix.IoctlSetPointerInt(int(tty.Fd()), unix.TIOCSPGRP, unix.Getpgrp()) // the terminal may be gone
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil)
}
