package launch

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// NeedsParent reports whether the command must be a child of this process instead of replacing it:
// only a child can be started in a new user namespace.
func (j *Job) NeedsParent() bool { return j.keep && os.Geteuid() != 0 }

// Supervise starts the command, records the resource use of its job, and returns how it ended.
func (j *Job) Supervise() (Summary, error) {
	stop, err := j.Lock.Inherit()
	if err != nil {
		j.Discard()
		return Summary{}, err
	}
	signals := make(chan os.Signal, 64)
	notifySignals(signals)
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
					continue // the terminal sends it to the command too
				}
			}
			_ = child.Signal(s) // it may have just ended
		}
	}()
	r := startRecorder(j.Lock.Job.Path)
	state, err := child.Wait()
	signal.Stop(signals)
	close(signals)
	s := r.stop()
	s.Job = j.Lock.Job.Name
	if err != nil {
		j.Lock.Release()
		return s, fmt.Errorf("waiting for the command: %w", err)
	}
	status := state.Sys().(syscall.WaitStatus)
	s.Status, s.Signal = status.ExitStatus(), 0
	if status.Signaled() {
		s.Signal = int(status.Signal())
		s.Status = 128 + s.Signal
	}
	if !j.Joined { // the job's command is that of its first launcher
		_ = j.Lock.WriteEnd(s.Status, s.Signal) // the job has ended even without this record
	}
	// A job that people may ask about is kept, as without a supervisor: until the next job of that
	// name, ration rm, or job.Kept younger jobs.
	if s.Status != 0 || s.Refused() > 0 {
		j.Lock.Release()
	} else {
		j.Discard()
	}
	return s, nil
}

// notifySignals subscribes to the signals to pass on to the command, except for those
// that this process ignores.
func notifySignals(to chan os.Signal) {
	for _, s := range []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2} {
		if !signal.Ignored(s) {
			signal.Notify(to, s)
		}
	}
	signal.Reset(unix.SIGTSTP, unix.SIGCONT)
}

// inForeground reports whether the terminal sends its signals to this process's group,
// which the command is in too.
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
		task, err := json.Marshal(j.namespaceTask())
		if err != nil {
			return nil, fmt.Errorf("writing a task: %w", err)
		}
		path, args, attr.Sys = exe, []string{os.Args[0], Inside, string(task)}, newNamespaces()
	}
	child, err := os.StartProcess(path, args, attr)
	switch {
	case err == nil:
		return child, nil
	case j.keep:
		return nil, namespaceError(err)
	}
	return nil, notRunnable(path, err)
}

// newNamespaces returns the attributes of a child that may mount.
func newNamespaces() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	if uid, gid := os.Geteuid(), os.Getegid(); uid != 0 {
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
		attr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN}
	}
	return attr
}

// EndAsCommand ends this process with the signal that ended the command, without a core dump of its
// own. If there was no signal, it returns the command's exit status.
func (s Summary) EndAsCommand() int {
	if s.Signal == 0 {
		return s.Status
	}
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	sig := syscall.Signal(s.Signal)
	signal.Reset(sig)
	_ = unix.Kill(os.Getpid(), sig)
	return s.Status // this process ignores the signal
}
