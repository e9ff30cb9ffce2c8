// Package harness runs the processes of tests and measurements: it starts them, sends
// them lines and reads theirs, stops, continues and kills them, and waits for their end.
//
// No process outlives this program: KillAll ends all of them before an early exit, and
// the kernel kills each of them if this program dies without calling it.
package harness

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrLate is returned if a process has not answered, or not ended, in time.
var ErrLate = errors.New("process is late")

const (
	endWithin = 10 * time.Second // time for a process to end after its output has ended
	logged    = 8 << 10          // most bytes of a log that Log returns
)

// Spec describes a process.
type Spec struct {
	Name string    // name in errors
	Cmd  *exec.Cmd // Start sets its standard files and the signal for the parent's death

	// Keep selects the lines of standard output that Line returns; nil selects all. Other lines go
	// to the log.
	Keep func(line string) bool

	// Beside is the PID of a process in whose PID namespace the process starts; 0 for none. Only
	// root may enter the namespace of another process. The process is then killed with its
	// namespace, not with this program.
	Beside int
}

// Process is a child process of this program.
type Process struct {
	name   string
	cmd    *exec.Cmd
	in     *os.File      // writing end of its standard input
	stdin  *os.File      // reading end: kept open, so that Tell raises no SIGPIPE if the process has ended
	lines  chan string   // closed when its standard output has ended
	closed chan struct{} // closed by Close: lines are no longer read

	logMu sync.Mutex
	log   *os.File // its standard error, a file in memory; nil after Close
	text  string   // the end of the log at Close

	waitOnce, closeOnce sync.Once
	ended               chan struct{} // closed when it was waited for
	err                 error         // how it ended; written before ended is closed
}

// Start starts a process. Its standard input and output are pipes to this
// program, its standard error is a log that Log returns.
func Start(s Spec) (*Process, error) {
	p := &Process{name: s.Name, cmd: s.Cmd, lines: make(chan string, 64), closed: make(chan struct{}), ended: make(chan struct{})}
	stdin, in, inErr := os.Pipe()
	out, stdout, outErr := os.Pipe()
	log, err := newLog()
	if err = errors.Join(inErr, outErr, err); err == nil {
		s.Cmd.Stdin, s.Cmd.Stdout, s.Cmd.Stderr = stdin, stdout, log
		p.in, p.stdin, p.log = in, stdin, log
		err = launch(p, s.Beside)
	}
	_ = stdout.Close()
	if err != nil {
		_, _, _, _ = stdin.Close(), in.Close(), out.Close(), log.Close()
		return nil, fmt.Errorf("starting %s: %w", s.Name, err)
	}
	go p.read(out, s.Keep)
	return p, nil
}

// newLog makes a file in memory, to which the process and this program append.
func newLog() (*os.File, error) {
	fd, err := unix.MemfdCreate("log", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making a log: %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_APPEND); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("making a log: %w", err)
	}
	return os.NewFile(uintptr(fd), "log"), nil
}

// read forwards lines until the process closes its end of the pipe.
func (p *Process) read(from io.ReadCloser, keep func(string) bool) {
	defer from.Close()
	defer close(p.lines)
	for r := bufio.NewReader(from); ; {
		line, err := r.ReadString('\n')
		if err != nil && line == "" {
			return
		}
		line = strings.TrimSuffix(line, "\n")
		if keep != nil && !keep(line) {
			p.logMu.Lock()
			if p.log != nil {
				fmt.Fprintln(p.log, line)
			}
			p.logMu.Unlock()
			continue
		}
		select {
		case p.lines <- line:
		case <-p.closed:
			return
		}
	}
}

// PID returns the process's PID in the namespace of this program. No other
// process gets this PID before Wait returns.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Tell sends the process a line. If the process has ended, Line reports it.
func (p *Process) Tell(format string, args ...any) {
	_, _ = fmt.Fprintf(p.in, format+"\n", args...)
}

// Lines returns the channel of output lines, for a caller that also waits for other events. It is
// closed when the output ends.
func (p *Process) Lines() <-chan string { return p.lines }

// Line waits for the next line of output. If there are no more, the error says
// how the process ended: it matches io.EOF if the exit status was 0.
func (p *Process) Line(within time.Duration) (string, error) {
	timer := time.NewTimer(max(within, 0))
	defer timer.Stop()
	select {
	case line, open := <-p.lines:
		if open {
			return line, nil
		}
	case <-timer.C:
		return "", fmt.Errorf("waiting for a line of %s (pid %d): %w", p.name, p.PID(), ErrLate)
	}
	err := p.Wait(endWithin)
	if err == nil {
		err = io.EOF
	}
	err = fmt.Errorf("%s (pid %d) ended: %w", p.name, p.PID(), err)
	if log := p.Log(); log != "" {
		err = fmt.Errorf("%w: %s", err, log)
	}
	return "", err
}

// Log returns the end of the process's standard error and of the output lines that were not kept.
// It includes everything that was written before a line that Line has returned.
func (p *Process) Log() string {
	p.logMu.Lock()
	defer p.logMu.Unlock()
	if p.log == nil {
		return p.text
	}
	info, err := p.log.Stat()
	if err != nil {
		return ""
	}
	text := make([]byte, min(info.Size(), logged))
	n, _ := p.log.ReadAt(text, info.Size()-int64(len(text)))
	return strings.TrimSpace(string(bytes.ToValidUTF8(text[:n], []byte("?"))))
}

// Signal sends the process a signal.
func (p *Process) Signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("sending %v to %s: %w", sig, p.name, err)
	}
	return nil
}

// Stop stops the process with SIGSTOP, and returns when it is stopped or dead.
func (p *Process) Stop() error {
	if err := p.Signal(unix.SIGSTOP); err != nil {
		return err
	}
	return p.await(unix.WSTOPPED | unix.WEXITED)
}

// Continue continues a stopped process.
func (p *Process) Continue() error { return p.Signal(unix.SIGCONT) }

// Kill kills the process, and returns when the kernel has released its memory, locks and files. It
// stays a zombie until Wait or Close.
func (p *Process) Kill() error {
	if err := p.Signal(unix.SIGKILL); err != nil {
		return err
	}
	return p.await(unix.WEXITED)
}

// StoppedOrDead returns a channel that is closed when the process is stopped or
// dead.
func (p *Process) StoppedOrDead() <-chan struct{} {
	changed := make(chan struct{})
	go func() {
		defer close(changed)
		_ = p.await(unix.WSTOPPED | unix.WEXITED) // Wait reports what became of it
	}()
	return changed
}

// await blocks until the process changes its state. It leaves the exit status for Wait.
func (p *Process) await(states int) error {
	for {
		err := unix.Waitid(unix.P_PID, p.PID(), nil, states|unix.WNOWAIT, nil)
		if err == nil || err == unix.ECHILD {
			return nil // ECHILD: an earlier Wait has taken the exit status
		}
		if err != unix.EINTR {
			return fmt.Errorf("waiting for a change of %s: %w", p.name, err)
		}
	}
}

// Wait waits for the process's end. The error says how it ended, if not with
// exit status 0.
func (p *Process) Wait(within time.Duration) error {
	select {
	case <-p.reap():
		return p.err
	case <-time.After(within):
		return fmt.Errorf("waiting for %s (pid %d) to end: %w", p.name, p.PID(), ErrLate)
	}
}

// reap collects the exit status, once and in the background. Until then a dead process is a zombie.
func (p *Process) reap() <-chan struct{} {
	p.waitOnce.Do(func() {
		go func() {
			p.err = p.cmd.Wait()
			started.Lock()
			delete(started.running, p)
			started.Unlock()
			close(p.ended)
		}()
	})
	return p.ended
}

// Close kills the process, if it has not ended, and releases its resources. Log and Wait still work
// afterwards.
func (p *Process) Close() {
	p.closeOnce.Do(func() {
		p.kill()
		<-p.reap()
		close(p.closed)
		_, _ = p.in.Close(), p.stdin.Close()
		text := p.Log()
		p.logMu.Lock()
		defer p.logMu.Unlock()
		_ = p.log.Close()
		p.log, p.text = nil, text
	})
}

func (p *Process) kill() { _ = p.cmd.Process.Signal(unix.SIGKILL) }
