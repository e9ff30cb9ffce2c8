package harness

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Bound is how long a worker may take to answer. It is no measure of speed: a
// loaded machine stays far below it, and only a process that waits for another
// one reaches it.
const Bound = 20 * time.Second

// Worker is a process that obeys orders.
type Worker struct {
	t     testing.TB
	cmd   *exec.Cmd
	in    *os.File
	lines chan string // closed when the process has ended
	ended bool        // waited for
}

// Option changes how a worker is started.
type Option func(*exec.Cmd)

// Fault makes the worker die, or stop, when it passes a point for the n-th time.
// It takes the Fault build.
func Fault(point fmt.Stringer, n int, mode string) Option {
	return func(c *exec.Cmd) {
		c.Env = append(c.Environ(), fmt.Sprintf("RATION_FAULT=%v:%d:%s", point, n, mode))
	}
}

// Through starts the worker by another command: path and arguments of the worker
// follow its own.
func Through(command ...string) Option {
	return func(c *exec.Cmd) {
		path, err := exec.LookPath(command[0])
		if err != nil {
			c.Err = err
			return
		}
		c.Args = append(command[:len(command):len(command)], c.Path)
		c.Path = path
	}
}

// Start starts the worker at path, an ordinary or a fault build. It is killed at
// the end of the test, and also if the test itself dies.
func Start(t testing.TB, path string, options ...Option) *Worker {
	t.Helper()
	w, err := TryStart(t, path, options...)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// TryStart is Start for a test that wants to know why it cannot be done.
func TryStart(t testing.TB, path string, options ...Option) (*Worker, error) {
	t.Helper()
	cmd := exec.Command(path)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	for _, o := range options {
		o(cmd)
	}
	orders, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, answers, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdin, cmd.Stdout = orders, answers
	err = cmd.Start()
	_, _ = orders.Close(), answers.Close()
	if err != nil {
		_, _ = in.Close(), out.Close()
		return nil, err
	}
	w := &Worker{t: t, cmd: cmd, in: in, lines: make(chan string, 64)}
	go func() {
		defer close(w.lines)
		defer out.Close()
		for s := bufio.NewScanner(out); s.Scan(); {
			w.lines <- s.Text()
		}
	}()
	t.Cleanup(func() { w.Kill() })
	return w, nil
}

// PID is the worker's, as the test sees it.
func (w *Worker) PID() int { return w.cmd.Process.Pid }

// Send gives an order and does not wait for the answer.
func (w *Worker) Send(format string, arg ...any) {
	// A worker that has died is found by whoever waits for its answer.
	_, _ = fmt.Fprintf(w.in, format+"\n", arg...)
}

// Answer waits for the answer to the oldest order without one.
func (w *Worker) Answer() Answer {
	w.t.Helper()
	a, alive := w.Hear()
	if !alive {
		w.t.Fatalf("worker %d died: %v", w.PID(), w.wait())
	}
	return a
}

// Hear is Answer for a worker that may die: false says that it has, and that
// there is nothing left to hear.
func (w *Worker) Hear() (Answer, bool) {
	w.t.Helper()
	select {
	case line, ok := <-w.lines:
		return Answer{w.t, line}, ok
	case <-time.After(Bound):
		w.t.Fatalf("worker %d did not answer within %v: it waits for somebody\n%s", w.PID(), Bound, w.stack())
	}
	return Answer{}, false
}

// Heard is where answers arrive, for a test that waits for something else too.
func (w *Worker) Heard() <-chan string { return w.lines }

// stack makes the worker say where it is: the runtime answers SIGQUIT with all
// its stacks, on standard error.
func (w *Worker) stack() string {
	state, _ := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", w.PID()))
	_ = w.cmd.Process.Signal(syscall.SIGQUIT)
	return fmt.Sprintf("kernel: %s", state)
}

// Ask gives an order and waits for its answer.
func (w *Worker) Ask(format string, arg ...any) Answer {
	w.t.Helper()
	w.Send(format, arg...)
	return w.Answer()
}

// OK gives an order that must succeed.
func (w *Worker) OK(format string, arg ...any) Answer {
	w.t.Helper()
	a := w.Ask(format, arg...)
	if a.Verdict() != "ok" {
		w.t.Fatalf("%s: %s", fmt.Sprintf(format, arg...), a)
	}
	return a
}

// Quit ends the worker in the ordinary way.
func (w *Worker) Quit() {
	w.t.Helper()
	w.Send("quit")
	for {
		a, alive := w.Hear()
		if !alive {
			break
		}
		if a.Verdict() != "ok" {
			w.t.Errorf("worker %d at its end: %s", w.PID(), a)
		}
	}
	if err := w.wait(); err != nil {
		w.t.Errorf("worker %d: %v", w.PID(), err)
	}
}

// Kill ends the worker with SIGKILL and waits until it is gone for good.
func (w *Worker) Kill() {
	if w.ended {
		return
	}
	_ = w.cmd.Process.Kill()
	for range w.lines {
		// Until its end of the pipe is closed.
	}
	_ = w.wait()
}

// Slay kills the worker and leaves it a zombie.
func (w *Worker) Slay() {
	w.t.Helper()
	w.Signal(syscall.SIGKILL)
	w.await(unix.WEXITED)
}

// Signal sends one.
func (w *Worker) Signal(s syscall.Signal) {
	w.t.Helper()
	if err := w.cmd.Process.Signal(s); err != nil {
		w.t.Errorf("signal %v to worker %d: %v", s, w.PID(), err)
	}
}

// Freeze stops the worker and returns when it is stopped.
func (w *Worker) Freeze() {
	w.t.Helper()
	w.Signal(syscall.SIGSTOP)
	w.await(unix.WSTOPPED | unix.WEXITED)
}

// Thaw continues it.
func (w *Worker) Thaw() { w.t.Helper(); w.Signal(syscall.SIGCONT) }

// await blocks until the process changes its state, and takes nothing away from
// whoever waits for it later.
func (w *Worker) await(what int) {
	for {
		err := unix.Waitid(unix.P_PID, w.PID(), nil, what|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return
		}
	}
}

// Fate is closed when the process has stopped or died.
func (w *Worker) Fate() <-chan struct{} {
	fate := make(chan struct{})
	go func() {
		defer close(fate)
		w.await(unix.WSTOPPED | unix.WEXITED)
	}()
	return fate
}

func (w *Worker) wait() error {
	if w.ended {
		return nil
	}
	w.ended = true
	_ = w.in.Close()
	return w.cmd.Wait()
}
