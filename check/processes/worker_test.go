package processes

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"ration/check/expect"
	"ration/check/harness"
	"ration/internal/abi"
)

// bound is how long a worker may take to answer. It does not measure speed: only a
// process that waits for another one exceeds it, on a loaded machine too.
const bound = 20 * time.Second

// worker is a process that carries out orders: see check/worker.
type worker struct {
	*harness.Process
	t       testing.TB
	stopped <-chan struct{} // closed when it has stopped or died; nil if no order waits for that
}

// option changes how a worker is started.
type option func(*exec.Cmd)

// fault makes the worker die or stop when it passes a failpoint for the n-th time. It
// needs the fault build.
func fault(point fmt.Stringer, n int, mode string) option {
	return func(c *exec.Cmd) {
		c.Env = append(c.Environ(), fmt.Sprintf("RATION_FAULT=%v:%d:%s", point, n, mode))
	}
}

// through starts the worker by another command. The worker's path follows the
// arguments of that command.
func through(command ...string) option {
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

// at lets the worker inherit a gate. The order "gate" has it wait there.
func at(g *harness.Gate) option {
	return func(c *exec.Cmd) { c.ExtraFiles = []*os.File{g.File()} }
}

func newGate(t testing.TB) *harness.Gate {
	t.Helper()
	g, err := harness.NewGate()
	expect.OK(t, err)
	t.Cleanup(g.Close)
	return g
}

// tryStart starts the worker at path, a plain or a fault build. It is killed at the end
// of the test, and also if the test itself dies. beside is the PID of a process in whose
// PID namespace it starts, or 0.
func tryStart(t testing.TB, beside int, path string, options ...option) (*worker, error) {
	t.Helper()
	cmd := exec.Command(path)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	for _, o := range options {
		o(cmd)
	}
	p, err := harness.Start(harness.Spec{Name: "worker", Cmd: cmd, Beside: beside})
	if err != nil {
		return nil, err
	}
	t.Cleanup(p.Close)
	return &worker{Process: p, t: t}, nil
}

func mustStart(t testing.TB, beside int, path string, options ...option) *worker {
	t.Helper()
	w, err := tryStart(t, beside, path, options...)
	expect.OK(t, err)
	return w
}

// start starts worker i of a mix.
func start(t testing.TB, mix impls, i int, options ...option) *worker {
	t.Helper()
	return mustStart(t, 0, mix.of(i).plain, options...)
}

// faulty starts worker i of a mix. It dies or stops, as mode says, when it passes a
// failpoint for the n-th time.
func faulty(t testing.TB, mix impls, i int, point abi.Failpoint, n int, mode string, options ...option) *worker {
	t.Helper()
	return mustStart(t, 0, mix.of(i).fault, append(options, fault(point, n, mode))...)
}

// join starts worker i of a mix and gives it a slot in the region at path, with
// these limits, one for each device.
func join(t testing.TB, mix impls, i int, path string, limits ...int) *worker {
	t.Helper()
	w := start(t, mix, i)
	w.join(path, fmt.Sprintf("worker-%d", i), limits...)
	return w
}

// join opens the region at path and claims a slot. It returns the slot's number.
func (w *worker) join(path, name string, limits ...int) (slot int) {
	w.t.Helper()
	w.OK("open %s%s", path, limitFields(limits...))
	return w.OK("claim %s", name).Int("slot")
}

// limitFields formats limits for the order open.
func limitFields(limits ...int) string {
	var s strings.Builder
	for d, bytes := range limits {
		fmt.Fprintf(&s, " %d=%d", d, bytes)
	}
	return s.String()
}

// answer is the line that answers an order.
type answer struct {
	t    testing.TB
	line string
}

func (a answer) String() string { return a.line }

// Verdict returns ok, refused or error.
func (a answer) Verdict() string {
	verdict, _, _ := strings.Cut(a.line, " ")
	return verdict
}

// Code returns which error it is, or nothing.
func (a answer) Code() string {
	if w := a.Fields(); len(w) > 0 && a.Verdict() == "error" {
		return w[0]
	}
	return ""
}

// Fields returns the words after the verdict.
func (a answer) Fields() []string { return strings.Fields(a.line)[1:] }

// Text returns the value of a field, or nothing if there is no such field.
func (a answer) Text(name string) string {
	for _, f := range a.Fields() {
		if n, value, ok := strings.Cut(f, "="); ok && n == name {
			return value
		}
	}
	return ""
}

// Int returns the value of a field, which must be there.
func (a answer) Int(name string) int {
	a.t.Helper()
	n, err := strconv.Atoi(a.Text(name))
	expect.OK(a.t, err, "no", name, a.line)
	return n
}

// want checks the verdict, or the code of an error. what describes the order in words.
func (a answer) want(verdict, what string) {
	a.t.Helper()
	expect.True(a.t, a.Verdict() == verdict || a.Code() == verdict, what, a, verdict)
}

// Answer waits for the answer to the oldest order without one.
func (w *worker) Answer() answer {
	w.t.Helper()
	a, err := w.answer()
	expect.OK(w.t, err)
	return a
}

// answer fails the test if the worker is late. Its error says how the worker ended.
func (w *worker) answer() (answer, error) {
	w.t.Helper()
	line, err := w.Line(bound)
	if errors.Is(err, harness.ErrLate) {
		// Where the worker waits: in the kernel, and in Go, whose runtime prints all
		// stacks at SIGQUIT.
		state, _ := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", w.PID())) // empty if unreadable
		_, _ = w.Process.Signal(syscall.SIGQUIT), w.Wait(bound)
		w.t.Fatalf("%v: it waits for another process\nkernel: %s\n%s", err, state, w.Log())
	}
	return answer{w.t, line}, err
}

// Ask gives an order and waits for its answer.
func (w *worker) Ask(format string, arg ...any) answer {
	w.t.Helper()
	w.Tell(format, arg...)
	return w.Answer()
}

// OK gives an order that must succeed.
func (w *worker) OK(format string, arg ...any) answer {
	w.t.Helper()
	a := w.Ask(format, arg...)
	if a.Verdict() != "ok" {
		w.t.Fatalf("%s: %s", fmt.Sprintf(format, arg...), a)
	}
	return a
}

// answers waits for n answers, which must all be ok, and returns the last one.
func (w *worker) answers(n int) (a answer) {
	w.t.Helper()
	for range n {
		a = w.Answer()
		expect.Must(w.t, a.Verdict() == "ok", "worker", w.PID(), a)
	}
	return a
}

// untilFault gives an order, and waits until the worker stops or dies at its failpoint.
// It returns the answer and false if the worker answers instead.
func (w *worker) untilFault(format string, arg ...any) (a answer, fault bool) {
	w.t.Helper()
	if w.stopped == nil {
		w.stopped = w.StoppedOrDead()
	}
	w.Tell(format, arg...)
	return w.answerOrFault()
}

func (w *worker) answerOrFault() (a answer, fault bool) {
	w.t.Helper()
	select {
	case <-w.stopped:
		w.stopped = nil
		return a, true
	case line, alive := <-w.Lines():
		return answer{w.t, line}, !alive
	case <-time.After(bound):
		w.t.Fatal("neither an answer nor a fault")
	}
	return a, false
}

// fault gives an order in which the worker must stop or die at its failpoint.
func (w *worker) fault(format string, arg ...any) {
	w.t.Helper()
	if a, fault := w.untilFault(format, arg...); !fault {
		w.t.Fatalf("%s: it did not pass its failpoint: %s", fmt.Sprintf(format, arg...), a)
	}
}

// eachStop gives an order to a worker that stops whenever it passes its failpoint. It
// calls do at each stop, and continues the worker. It returns the answer to the order, and
// how often the worker stopped.
func (w *worker) eachStop(order string, do func(stops int)) (a answer, stops int) {
	w.t.Helper()
	a, stopped := w.untilFault("%s", order)
	for stopped {
		stops++
		do(stops)
		w.Continue()
		w.stopped = w.StoppedOrDead()
		a, stopped = w.answerOrFault()
	}
	return a, stops
}

// Quit tells the worker to end, and checks that all its answers were ok.
func (w *worker) Quit() {
	w.t.Helper()
	w.Tell("quit")
	for {
		a, err := w.answer()
		if err != nil {
			break
		}
		a.want("ok", fmt.Sprintf("worker %d at its end", w.PID()))
	}
	w.check(w.Wait(bound))
}

// quit ends several workers.
func quit(workers ...*worker) {
	for _, w := range workers {
		w.t.Helper()
		w.Quit()
	}
}

// finish ends the last workers of a region, and checks that nothing is left in it.
func finish(t testing.TB, path string, workers ...*worker) {
	t.Helper()
	quit(workers...)
	checkEmpty(t, path)
}

// reaps has the worker reap, and checks how many slots it freed.
func (w *worker) reaps(want int) {
	w.t.Helper()
	expect.Equal(w.t, w.OK("reap").Int("slots"), want, "slots were reaped")
}

// Kill kills the worker and waits until its PID is free.
func (w *worker) Kill() { w.Close() }

// KillToZombie kills the worker and leaves it a zombie.
func (w *worker) KillToZombie() { w.t.Helper(); w.check(w.Process.Kill()) }

// Stop stops the worker and returns when it is stopped.
func (w *worker) Stop() { w.t.Helper(); w.check(w.Process.Stop()) }

// Continue continues a stopped worker.
func (w *worker) Continue() { w.t.Helper(); w.check(w.Process.Continue()) }

func (w *worker) check(err error) {
	w.t.Helper()
	expect.Equal(w.t, err, nil, "worker", w.PID())
}
