// Package procgroup starts processes of this same program that work together:
// they wait at gates, which open for all of them at once, and report what they
// measured. The benchmarks are made of such groups, since they measure what
// processes do to each other.
//
// On its standard output a worker reports, one JSON value a line. Each gate is a pipe
// whose writing end the group's owner closes, which wakes all workers that wait at it
// in one step.
package procgroup

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/child"
)

// Command is the first argument of a worker's command line; Serve takes the rest.
const Command = "worker"

// readyWithin is how long all workers together may take to start.
const readyWithin = time.Minute

// Spec describes a group.
type Spec struct {
	Role  string          // what the workers do: a key of the roles given to Serve
	N     int             // number of workers
	Gates int             // number of gates
	Task  func(i int) any // what worker i is given as its task, marshalled to JSON
}

// Group is a group of processes that were started together.
type Group struct {
	Workers []*Worker

	gates []*os.File // writing ends
}

// Worker is one process of a group, as its owner sees it.
type Worker struct {
	*child.Process
	Index int
}

// Start starts a group, and returns when all its workers are ready.
func Start(spec Spec) (_ *Group, err error) {
	g := &Group{}
	defer func() {
		if err != nil {
			g.Close()
		}
	}()
	var inherited []*os.File // reading ends, which only workers need
	defer func() {
		for _, f := range inherited {
			_ = f.Close()
		}
	}()
	for range spec.Gates {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, fmt.Errorf("making a gate: %w", err)
		}
		g.gates, inherited = append(g.gates, w), append(inherited, r)
	}
	for i := range spec.N {
		w, err := start(spec, i, inherited)
		if err != nil {
			return nil, err
		}
		g.Workers = append(g.Workers, w)
	}
	_, err = Gather[ready](g, readyWithin)
	return g, err
}

func start(spec Spec, i int, gates []*os.File) (*Worker, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	task, err := json.Marshal(spec.Task(i))
	if err != nil {
		return nil, fmt.Errorf("encoding the task of worker %d: %w", i, err)
	}
	cmd := exec.Command(exe, Command, spec.Role, strconv.Itoa(i), string(task))
	cmd.Args[0] = os.Args[0] // a test binary recognises itself by its name
	cmd.ExtraFiles = gates
	p, err := child.Start(child.Spec{Name: fmt.Sprintf("worker %d", i), Cmd: cmd})
	if err != nil {
		return nil, err
	}
	return &Worker{p, i}, nil
}

// Open opens a gate: all workers that wait at it go on, and none will wait there
// again.
func (g *Group) Open(gate int) { _ = g.gates[gate].Close() }

// Close kills the workers that have not ended, and waits for all.
func (g *Group) Close() {
	for _, w := range g.Workers { // all at once, and then one by one
		_ = w.Signal(unix.SIGKILL)
	}
	for _, w := range g.Workers {
		w.Close()
	}
	for _, f := range g.gates {
		_ = f.Close()
	}
}

// Receive decodes the worker's next report into v.
func (w *Worker) Receive(v any, within time.Duration) error {
	line, err := w.Line(within)
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(line), v); err != nil {
		return fmt.Errorf("reading a report of worker %d: %w", w.Index, err)
	}
	return nil
}

// Gather receives one report from each worker, in their order.
func Gather[T any](g *Group, within time.Duration) ([]T, error) {
	out := make([]T, len(g.Workers))
	deadline := time.Now().Add(within)
	for i, w := range g.Workers {
		if err := w.Receive(&out[i], time.Until(deadline)); err != nil {
			return out, err
		}
	}
	return out, nil
}
