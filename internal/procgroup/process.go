package procgroup

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a process that this program started, and will have ended when it
// ends itself.
type Process struct {
	what string // in errors
	cmd  *exec.Cmd

	once  sync.Once
	ended chan struct{}
	err   error
}

// launched are those whose end nobody has seen.
var launched = struct {
	sync.Mutex
	processes map[*Process]bool
	swept     bool // no more are started
}{processes: map[*Process]bool{}}

// ErrSwept is returned when a process is to be started after Sweep.
var ErrSwept = errors.New("the program is about to end")

// sweepWithin is how long Sweep waits for the dead to be gone.
const sweepWithin = time.Second

// Launch starts a command. what is what errors call it.
func Launch(what string, cmd *exec.Cmd) (*Process, error) {
	launched.Lock() // so that Sweep finds whatever was started
	defer launched.Unlock()
	if launched.swept {
		return nil, fmt.Errorf("starting %s: %w", what, ErrSwept)
	}
	if err := startFromLaunchPad(cmd); err != nil {
		return nil, fmt.Errorf("starting %s: %w (does the system allow so many processes?)", what, err)
	}
	p := &Process{what: what, cmd: cmd}
	launched.processes[p] = true
	return p, nil
}

// launchPad starts commands on a thread that lasts as long as this program: the
// kernel kills what a thread started when that thread ends.
var launchPad = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for do := range work {
			do()
		}
	}()
	return work
})

// startFromLaunchPad has the kernel end the process with us, should we be killed.
// Most would see the end of a pipe, but one that was stopped never would.
func startFromLaunchPad(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	done := make(chan error)
	launchPad() <- func() { done <- cmd.Start() }
	return <-done
}

// Sweep kills every process that was launched and has not ended, for a program
// that is about to end in the middle of its work. They write nothing any more when
// it returns.
func Sweep() {
	launched.Lock()
	launched.swept = true
	var all []*Process
	for p := range launched.processes {
		all = append(all, p)
	}
	launched.Unlock()
	for _, p := range all {
		p.kill()
	}
	late := time.After(sweepWithin)
	for _, p := range all {
		select {
		case <-p.wait():
		case <-late:
			return
		}
	}
}

// PID is the process's, as this one sees it. It stays its own until Ended.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends the process a signal.
func (p *Process) Signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("sending %v to %s: %w", sig, p.what, err)
	}
	return nil
}

// Ended waits for the process's end. Its error is how it ended, if not by itself
// and well.
func (p *Process) Ended(within time.Duration) error {
	select {
	case <-p.wait():
		return p.err
	case <-time.After(within):
		return fmt.Errorf("waiting for %s (pid %d) to end: %w", p.what, p.PID(), ErrLate)
	}
}

// Die kills the process, and returns when the kernel has taken all from it. It
// stays a zombie until Ended, so that its PID is nobody else's meanwhile.
func (p *Process) Die() error {
	if err := p.Signal(unix.SIGKILL); err != nil {
		return err
	}
	for {
		err := unix.Waitid(unix.P_PID, p.PID(), nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err == nil || err == unix.ECHILD {
			return nil // the second: an earlier Ended was waiting, and has seen it off
		}
		if err != unix.EINTR {
			return fmt.Errorf("waiting for the death of %s: %w", p.what, err)
		}
	}
}

// Close ends the process, if it has not ended, and sees it off.
func (p *Process) Close() {
	p.kill()
	<-p.wait()
}

func (p *Process) kill() { _ = p.cmd.Process.Signal(unix.SIGKILL) }

func (p *Process) wait() <-chan struct{} {
	p.once.Do(func() {
		p.ended = make(chan struct{})
		go func() {
			p.err = p.cmd.Wait()
			launched.Lock()
			delete(launched.processes, p)
			launched.Unlock()
			close(p.ended)
		}()
	})
	return p.ended
}
