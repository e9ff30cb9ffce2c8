package launch

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/job"
	"ration/internal/proc"
	"ration/internal/region"
)

// Supervise starts the command, waits for it, and records how it ended in the job. With sample it also
// samples the job's resource use; otherwise the summary has only the end. beside, unless it is nil, runs while the
// command does: its context ends with the command, and Supervise waits for its return.
//
// This process stays the command's parent, because the kernel tells only a parent how a process ended. The
// kernel kills the command if this process is killed, as if both were one.
func (j *Job) Supervise(sample bool, beside func(context.Context)) (Summary, error) {
	runtime.LockOSThread() // the kernel kills the command when the thread that started it ends
	stop, err := j.inherit()
	if err != nil {
		j.Discard()
		return Summary{}, err
	}
	j.catchSignals()
	var r *recorder
	if sample { // before the command, whose end may end the limits
		r = startRecorder(j.region)
	}
	began, earlier := time.Now().UnixNano(), len(j.signals)
	child, err := j.start()
	stop()
	if err != nil {
		if r != nil {
			r.stop()
		}
		j.Discard()
		return Summary{}, err
	}
	var passing sync.WaitGroup
	told := false
	passing.Go(func() {
		for s := range j.signals {
			// The terminal sends it to the command too, if that was there.
			typed := earlier <= 0 && (s == unix.SIGINT || s == unix.SIGQUIT) && inForeground()
			earlier--
			if ending := s.(syscall.Signal); job.Ends(ending) {
				told = true
				byTerminal := typed || s == unix.SIGHUP // which may have ended some, or their parents, before this process
				job.Tell(j.region, ending, func(p region.Process) bool {
					pid := cmp.Or(p.Seen, p.Named) // nothing confirms the PID of a process that is ending
					return descends(pid, child.Pid) || byTerminal && ((p.Dead || p.Ending) && p.Joined > began || inGroup(pid))
				})
			}
			if !typed {
				_ = child.Signal(s) // it may have just ended
			}
		}
	})
	// It may start processes, so it begins after the command has inherited the job's lock, which they must not.
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	if beside != nil {
		watching.Go(func() { beside(ctx) })
	}
	state, err := child.Wait()
	cancel()
	watching.Wait()
	defer j.endLate()()
	signal.Stop(j.signals)
	close(j.signals)
	passing.Wait()
	if told { // while the marks count: nobody else may look soon
		reap(j.region)
	}
	var s Summary
	if r != nil {
		s = r.stop()
	}
	s.Job, s.Shared = j.Lock.Job.Name, j.ruled && j.run == nil && !j.Joined
	if !s.Shared {
		s.Job = job.ShownName(s.Job, j.region) // a run
	}
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
	// The job's command is that of its first launcher. A command that joined counts only if it failed.
	if !j.Joined || s.Status != 0 {
		if err := j.Lock.WriteEnd(s.Status, s.Signal); err != nil {
			j.warn(err.Error() + " (ration wait will not know how it ended)")
		}
	}
	j.saveRun()
	// Keep the job, so that people can ask how it ended: until the next job of that name, ration rm, or
	// job.Kept younger jobs.
	j.Lock.Release()
	return s, nil
}

// saveRun copies the region of a run beside its record, because the policy's service removes the run with its refusals
// when no process uses it. Then it ends the run. The run of a command that has left processes behind is not copied: it
// goes on.
func (j *Job) saveRun() {
	if j.run == nil {
		return
	}
	if err := region.Save(j.region, filepath.Join(j.Lock.Folder, job.RegionName)); err != nil && !errors.Is(err, region.ErrUsed) {
		j.warn(err.Error() + " (ration ps and ration why will not know this job)")
	}
	j.endRun(j.Lock.Job.Name)
}

// descends reports whether a process is another one, or was started by it.
func descends(pid, from int) bool {
	return pid == from || proc.Ancestor(pid, func(pid int) bool { return pid == from }) != 0
}

// inGroup reports whether a process is in this process's group, to which a terminal sends its signals.
func inGroup(pid int) bool {
	group, err := unix.Getpgid(pid)
	return pid > 0 && err == nil && group == unix.Getpgrp()
}

// inherit makes the command inherit the locks of its job and its run, until stop is called.
func (j *Job) inherit() (stop func(), err error) {
	stopJob, err := j.Lock.Inherit()
	if err != nil || j.run == nil {
		return stopJob, err
	}
	stopRun, err := job.InheritFile(j.run)
	if err != nil {
		stopJob()
		return nil, err
	}
	return func() { stopJob(); stopRun() }, nil
}

// endings are the signals that end a process that does not handle them, as somebody asks it to end.
var endings = []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT}

// noteSignals records it if a signal ends this process before the command of a job has begun, as while it waits for room:
// ration wait must not return the end of an earlier command of that name.
func (j *Job) noteSignals(name string) {
	early, done := make(chan os.Signal, 1), make(chan struct{})
	for _, s := range endings {
		if !signal.Ignored(s) {
			signal.Notify(early, s)
		}
	}
	j.stopNoting = sync.OnceFunc(func() { // when another channel gets the signals
		signal.Stop(early)
		close(early)
		<-done // a signal that came before ends this process
	})
	go func() {
		defer close(done)
		for s := range early {
			ending := s.(syscall.Signal)
			job.RecordNotStarted(name, 128+int(ending), unix.SignalName(ending)+" ended its ration run before that")
			signal.Reset(ending)
			_ = unix.Kill(os.Getpid(), ending)
		}
	}()
}

// catchSignals subscribes to the signals to pass on to the command, except for those
// that this process ignores. Those that come before the command has started wait for it.
func (j *Job) catchSignals() {
	if j.signals != nil {
		return
	}
	j.signals = make(chan os.Signal, 64)
	subscribe(j.signals)
	signal.Reset(unix.SIGTSTP, unix.SIGCONT)
	if j.stopNoting != nil {
		j.stopNoting()
	}
}

// endLate lets a signal that comes when the command has ended wait until that is recorded, and stop was called. A second one
// ends this process, as where a disk does not respond.
func (j *Job) endLate() (stop func()) {
	late := make(chan os.Signal, 2)
	subscribe(late)
	go func() {
		<-late
		if s, is := <-late; is {
			signal.Reset(s)
			_ = unix.Kill(os.Getpid(), s.(syscall.Signal))
		}
	}()
	return func() {
		signal.Stop(late)
		close(late)
	}
}

// subscribe lets a channel get the signals that are for a command.
func subscribe(to chan<- os.Signal) {
	for _, s := range append(endings, unix.SIGUSR1, unix.SIGUSR2) {
		if !signal.Ignored(s) {
			signal.Notify(to, s)
		}
	}
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
	attr := &os.ProcAttr{Env: j.environ, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: &syscall.SysProcAttr{}}
	path, args := j.path, j.args
	if j.keep || hasSockets() {
		exe, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("finding this program: %w", err)
		}
		t := namespaceTask{Path: path, Args: args}
		if j.keep {
			t, attr.Sys = j.namespaceTask(), newNamespaces()
		}
		task, err := json.Marshal(t)
		if err != nil {
			return nil, fmt.Errorf("writing a task: %w", err)
		}
		path, args = exe, []string{os.Args[0], Inside, string(task)}
	}
	attr.Sys.Pdeathsig = unix.SIGKILL
	child, err := os.StartProcess(path, args, attr)
	switch {
	case err == nil:
		return child, nil
	case j.keep:
		return nil, namespaceError(err)
	}
	return nil, notRunnable(path, err)
}

// envListenPID names the process to which systemd passes sockets (sd_listen_fds(3)).
const envListenPID = "LISTEN_PID"

// hasSockets reports whether systemd has passed sockets to this process. They are for the command: it inherits
// them, and the variable must have its PID, which only the command's own process knows (Enter).
func hasSockets() bool { return os.Getenv(envListenPID) == strconv.Itoa(os.Getpid()) }

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
