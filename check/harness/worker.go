package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"ration/check/child"
)

// Bound is how long a worker may take to answer. It does not measure speed: only a
// process that waits for another one exceeds it, on a loaded machine too.
const Bound = 20 * time.Second

// Worker is a process that carries out orders: see check/worker.
type Worker struct {
	t testing.TB
	*child.Process
}

// Option changes how a worker is started.
type Option func(*exec.Cmd)

// Fault makes the worker die or stop when it passes a failpoint for the n-th time. It
// needs the Fault build.
func Fault(point fmt.Stringer, n int, mode string) Option {
	return func(c *exec.Cmd) {
		c.Env = append(c.Environ(), fmt.Sprintf("RATION_FAULT=%v:%d:%s", point, n, mode))
	}
}

// Through starts the worker by another command. The worker's path follows the
// arguments of that command.
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

// Start starts the worker at path, a plain or a fault build. It is killed at the end
// of the test, and also if the test itself dies.
func Start(t testing.TB, path string, options ...Option) *Worker {
	t.Helper()
	w, err := TryStart(t, path, options...)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// TryStart is Start for a test that handles the error itself.
func TryStart(t testing.TB, path string, options ...Option) (*Worker, error) {
	t.Helper()
	return start(t, child.Spec{Name: "worker", Cmd: exec.Command(path)}, options...)
}

func start(t testing.TB, s child.Spec, options ...Option) (*Worker, error) {
	t.Helper()
	s.Cmd.SysProcAttr = &syscall.SysProcAttr{}
	for _, o := range options {
		o(s.Cmd)
	}
	p, err := child.Start(s)
	if err != nil {
		return nil, err
	}
	t.Cleanup(p.Close)
	return &Worker{t, p}, nil
}

// Answer waits for the answer to the oldest order without one.
func (w *Worker) Answer() Answer {
	w.t.Helper()
	a, err := w.answer()
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

// AnswerIfAlive is Answer for a worker that may die. It returns false if the worker
// has died and there are no more answers.
func (w *Worker) AnswerIfAlive() (Answer, bool) {
	w.t.Helper()
	a, err := w.answer()
	return a, err == nil
}

// answer fails the test if the worker is late. Its error says how the worker ended.
func (w *Worker) answer() (Answer, error) {
	w.t.Helper()
	line, err := w.Line(Bound)
	if errors.Is(err, child.ErrLate) {
		w.t.Fatalf("%v: it waits for another process\n%s", err, w.stacks())
	}
	return Answer{w.t, line}, err
}

// stacks returns where the worker waits: in the kernel, and in Go, whose runtime
// prints all stacks at SIGQUIT.
func (w *Worker) stacks() string {
	state, _ := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", w.PID())) // empty if unreadable
	_, _ = w.Process.Signal(syscall.SIGQUIT), w.Wait(Bound)
	return fmt.Sprintf("kernel: %s\n%s", state, w.Log())
}

// Ask gives an order and waits for its answer.
func (w *Worker) Ask(format string, arg ...any) Answer {
	w.t.Helper()
	w.Tell(format, arg...)
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

// Quit tells the worker to end, and checks that all its answers were ok.
func (w *Worker) Quit() {
	w.t.Helper()
	w.Tell("quit")
	for {
		a, alive := w.AnswerIfAlive()
		if !alive {
			break
		}
		if a.Verdict() != "ok" {
			w.t.Errorf("worker %d at its end: %s", w.PID(), a)
		}
	}
	if err := w.Wait(Bound); err != nil {
		w.t.Errorf("worker %d: %v", w.PID(), err)
	}
}

// Kill kills the worker and waits until its PID is free.
func (w *Worker) Kill() { w.Close() }

// KillToZombie kills the worker and leaves it a zombie.
func (w *Worker) KillToZombie() { w.t.Helper(); w.check(w.Process.Kill()) }

// Stop stops the worker and returns when it is stopped.
func (w *Worker) Stop() { w.t.Helper(); w.check(w.Process.Stop()) }

// Continue continues a stopped worker.
func (w *Worker) Continue() { w.t.Helper(); w.check(w.Process.Continue()) }

func (w *Worker) check(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Error(err)
	}
}
