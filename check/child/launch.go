package child

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrEnding is returned by Start after KillAll.
var ErrEnding = errors.New("the program is about to end")

// killWithin is how long KillAll waits for the processes it killed.
const killWithin = time.Second

// children are the processes that were started and not waited for.
var children = struct {
	sync.Mutex
	running map[*Process]bool
	ending  bool // KillAll was called: no more are started

	adopting bool // Adopt was called
}{running: map[*Process]bool{}}

// launch starts a process and registers it, so that KillAll finds every process
// that was started.
func launch(p *Process, beside int) error {
	children.Lock()
	defer children.Unlock()
	if children.ending {
		return ErrEnding
	}
	if err := startOnLaunchThread(p.cmd, beside); err != nil {
		return fmt.Errorf("%w (does the system allow so many processes?)", err)
	}
	children.running[p] = true
	return nil
}

func forget(p *Process) {
	children.Lock()
	defer children.Unlock()
	delete(children.running, p)
}

// launchThread runs functions on one thread that lasts as long as this program:
// the kernel kills the children of a thread when that thread ends.
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

// startOnLaunchThread starts a command that the kernel kills when this program
// dies. Most children would end at the end of their input, but a stopped one
// reads none.
func startOnLaunchThread(cmd *exec.Cmd, beside int) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	start := cmd.Start
	if beside == 0 {
		cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	} else {
		start = func() error { return startBeside(cmd, beside) }
	}
	done := make(chan error)
	launchThread() <- func() { done <- start() }
	return <-done
}

// startBeside starts a command in the PID namespace of another process. The
// namespace of new children belongs to the thread, which gets its own back. The
// child cannot see its parent's PID, so it would take the parent for dead and
// must not ask to be killed with it.
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

// KillAll kills every process that was started and has not ended, for a program
// that is about to end in the middle of its work. None of them writes anything
// after it returns, and no more can be started.
func KillAll() {
	children.Lock()
	children.ending = true
	var all []*Process
	for p := range children.running {
		all = append(all, p)
	}
	children.Unlock()
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
