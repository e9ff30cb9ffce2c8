package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// NeedsParent says whether the command cannot take this process's place: a user
// namespace is made for a child only.
func (j *Job) NeedsParent() bool { return j.keep && os.Geteuid() != 0 }

// Supervise starts the command, watches its job, and returns how it ended.
func (j *Job) Supervise() (Summary, error) {
	stop, err := j.Hold.Inherit()
	if err != nil {
		j.Discard()
		return Summary{}, err
	}
	signals := make(chan os.Signal, 64)
	forward(signals)
	child, err := j.start()
	stop()
	if err != nil {
		j.Discard()
		return Summary{}, err
	}
	go func() {
		for s := range signals {
			if s == unix.SIGINT || s == unix.SIGQUIT {
				if inForeground() {
					continue // the terminal has told the command as well
				}
			}
			_ = child.Signal(s) // it may have just ended
		}
	}()
	w := watch(j.Hold.Job.Path)
	state, err := child.Wait()
	signal.Stop(signals)
	close(signals)
	s := w.end()
	s.Job = j.Hold.Job.Name
	j.Discard()
	if err != nil {
		return s, fmt.Errorf("waiting for the command: %w", err)
	}
	status := state.Sys().(syscall.WaitStatus)
	s.Status, s.Signal = status.ExitStatus(), 0
	if status.Signaled() {
		s.Signal = int(status.Signal())
		s.Status = 128 + s.Signal
	}
	return s, nil
}

// forward listens to what a supervisor would otherwise die of, but for what this
// process was told to ignore.
func forward(to chan os.Signal) {
	for _, s := range []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2} {
		if !signal.Ignored(s) {
			signal.Notify(to, s)
		}
	}
	signal.Reset(unix.SIGTSTP, unix.SIGCONT)
}

// inForeground says whether a terminal sends its signals to this process, and so
// to the command, which is of the same group.
func inForeground() bool {
	tty, err := os.OpenFile("/dev/tty", os.O_RDONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

func (j *Job) start() (*os.Process, error) {
	attr := &os.ProcAttr{Env: j.environ, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}}
	path, args := j.path, j.args
	if j.keep {
		exe, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("finding this program: %w", err)
		}
		task, err := json.Marshal(j.mounts())
		if err != nil {
			return nil, fmt.Errorf("writing a task: %w", err)
		}
		path, args, attr.Sys = exe, []string{os.Args[0], Inside, string(task)}, namespace()
	}
	child, err := os.StartProcess(path, args, attr)
	switch {
	case err == nil:
		return child, nil
	case j.keep:
		return nil, refusedNamespace(err)
	case errors.Is(err, unix.ENOEXEC):
		return nil, fmt.Errorf("%s: %w: not a program, and it names no interpreter (start it with one, as in sh %s)", path, ErrNotRunnable, path)
	}
	return nil, fmt.Errorf("%s: %w: %w", path, ErrNotRunnable, err)
}

// namespace is what a child needs to mount.
func namespace() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	if uid, gid := os.Geteuid(), os.Getegid(); uid != 0 {
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
		attr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN}
	}
	return attr
}

// Follow ends this process as the command ended: by the same signal, where it was
// one, and without a core of its own. Otherwise it returns the exit status.
func (s Summary) Follow() int {
	if s.Signal == 0 {
		return s.Status
	}
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	sig := syscall.Signal(s.Signal)
	signal.Reset(sig)
	_ = unix.Kill(os.Getpid(), sig)
	return s.Status // of a signal that this process was told to ignore
}
