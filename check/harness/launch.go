package harness

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrEnding is returned by Start after KillAll.
var ErrEnding = errors.New("the program is about to end")

// killWithin bounds how long KillAll waits for the processes it killed.
const killWithin = time.Second

// started has the processes that were started and not waited for.
var started = struct {
	sync.Mutex
	running map[*Process]bool
	ending  bool // KillAll was called: no more are started

	adopting bool // Adopt was called
}{running: map[*Process]bool{}}

// launch starts a process and registers it for KillAll.
func launch(p *Process, beside int) error {
	started.Lock()
	defer started.Unlock()
	if started.ending {
		return ErrEnding
	}
	if err := startOnLaunchThread(p.cmd, beside); err != nil {
		return fmt.Errorf("%w (does the system allow so many processes?)", err)
	}
	started.running[p] = true
	return nil
}

// launchThread runs functions on one thread that lives as long as this program, because the kernel
// kills the children of a thread when that thread ends.
var launchThread = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for do := range work {
			do()
		}
	}()
	return work
})

// startOnLaunchThread starts a command that the kernel kills when this program dies. Most processes
// end when their input ends, but a stopped process does not notice that.
func startOnLaunchThread(cmd *exec.Cmd, beside int) error {
	start := cmd.Start
	if beside == 0 {
		attributes(cmd).Pdeathsig = unix.SIGKILL
	} else {
		start = func() error { return startBeside(cmd, beside) }
	}
	done := make(chan error)
	launchThread() <- func() { done <- start() }
	return <-done
}

// Again returns a command that runs this program with other arguments.
func Again(args ...string) (*exec.Cmd, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Args[0] = os.Args[0] // a test binary may recognise itself by its name
	return cmd, nil
}

func attributes(cmd *exec.Cmd) *syscall.SysProcAttr {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	return cmd.SysProcAttr
}

// NewPIDs makes a command start as the first process of a new PID namespace. For a user other than
// root that also needs a user namespace, in which the command keeps its user.
func NewPIDs(cmd *exec.Cmd) {
	attr := attributes(cmd)
	attr.Cloneflags |= unix.CLONE_NEWPID
	if uid, gid := os.Geteuid(), os.Getegid(); uid != 0 {
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
	}
}

// startBeside starts a command in the PID namespace of another process. That setting belongs to the
// calling thread, and startBeside restores it. The command cannot see its parent's PID and would
// think that the parent is dead. So it must not ask the kernel to be killed with the parent.
func startBeside(cmd *exec.Cmd, pid int) error {
	enter := func(pid int) error {
		fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/pid", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("opening the PID namespace of pid %d: %w", pid, err)
		}
		defer unix.Close(fd)
		if err := unix.Setns(fd, unix.CLONE_NEWPID); err != nil {
			return fmt.Errorf("entering the PID namespace of pid %d: %w", pid, err)
		}
		return nil
	}
	if err := enter(pid); err != nil {
		return err
	}
	err := cmd.Start()
	if back := enter(os.Getpid()); back != nil && err == nil {
		_, err = cmd.Process.Kill(), back
		_ = cmd.Wait() // killed
	}
	return err
}

// KillAll kills every process that was started and has not ended, for a program that must end
// early. After it returns, none of them writes anything, and no process can be started.
func KillAll() {
	started.Lock()
	started.ending = true
	all := slices.Collect(maps.Keys(started.running))
	started.Unlock()
	for _, p := range all {
		p.kill()
	}
	late := time.After(killWithin)
	for _, p := range all {
		select {
		case <-p.reap():
		case <-late:
			return
		}
	}
	KillDescendants()
}
