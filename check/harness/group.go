package harness

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// WorkerCommand is the first argument of a worker's command line; Serve takes the rest.
const WorkerCommand = "worker"

// ErrUsage is returned by Serve for a command line that StartGroup did not make.
var ErrUsage = errors.New("not started by ration (this command is not for people)")

// readyWithin is how long all workers of a group together may take to start.
const readyWithin = time.Minute

// GroupSpec describes a group.
type GroupSpec struct {
	Role  string          // what the workers do: a key of the roles given to Serve
	N     int             // number of workers
	Gates int             // number of gates
	Task  func(i int) any // the task of worker i, which is sent as JSON
}

// Group is several processes of this same program that work together. They wait at
// gates, which open for all of them at once, and report what they measured: one JSON
// value a line.
type Group struct {
	Workers []*Process
	gates   []*Gate
}

// StartGroup starts a group, and returns when all its workers are ready.
func StartGroup(spec GroupSpec) (_ *Group, err error) {
	g := &Group{}
	defer func() {
		if err != nil {
			g.Close()
		}
	}()
	var files []*os.File
	for range spec.Gates {
		gate, err := NewGate()
		if err != nil {
			return nil, err
		}
		g.gates, files = append(g.gates, gate), append(files, gate.File())
	}
	for i := range spec.N {
		task, err := json.Marshal(spec.Task(i))
		if err != nil {
			return nil, fmt.Errorf("encoding the task of worker %d: %w", i, err)
		}
		cmd, err := Again(WorkerCommand, spec.Role, strconv.Itoa(i), string(task))
		if err != nil {
			return nil, err
		}
		cmd.ExtraFiles = files
		w, err := Start(Spec{Name: fmt.Sprintf("worker %d", i), Cmd: cmd})
		if err != nil {
			return nil, err
		}
		g.Workers = append(g.Workers, w)
	}
	_, err = Gather[ready](g, readyWithin)
	return g, err
}

// Open opens a gate for all workers.
func (g *Group) Open(gate int) { g.gates[gate].Open() }

// Close kills the workers that have not ended, and waits for all.
func (g *Group) Close() {
	for _, w := range g.Workers { // all at once, and then one by one
		_ = w.Signal(unix.SIGKILL)
	}
	for _, w := range g.Workers {
		w.Close()
	}
	for _, gate := range g.gates {
		gate.Close()
	}
}

// Gather receives one report from each worker, in their order.
func Gather[T any](g *Group, within time.Duration) ([]T, error) {
	out := make([]T, len(g.Workers))
	deadline := time.Now().Add(within)
	for i, w := range g.Workers {
		line, err := w.Line(time.Until(deadline))
		if err != nil {
			return out, err
		}
		if err := json.Unmarshal([]byte(line), &out[i]); err != nil {
			return out, fmt.Errorf("reading a report of worker %d: %w", i, err)
		}
	}
	return out, nil
}

// Role is what a worker does.
type Role func(*Self) error

// Self is a worker as it sees itself.
type Self struct {
	Index int

	task string
	out  *json.Encoder
}

// ready is the first report of every worker.
type ready struct{}

// Serve runs a worker by its command line, without WorkerCommand. An error of its role
// reaches the group's owner through the worker's log and exit status.
func Serve(args []string, roles map[string]Role) error {
	if len(args) != 3 {
		return ErrUsage
	}
	role := roles[args[0]]
	index, err := strconv.Atoi(args[1])
	if role == nil || err != nil {
		return ErrUsage
	}
	s := &Self{Index: index, task: args[2], out: json.NewEncoder(os.Stdout)}
	if err := s.Report(ready{}); err != nil {
		return err
	}
	return role(s)
}

// Task decodes the worker's task into v.
func (s *Self) Task(v any) error {
	if err := json.Unmarshal([]byte(s.task), v); err != nil {
		return fmt.Errorf("reading the task of worker %d: %w", s.Index, err)
	}
	return nil
}

// Report sends a value to the group's owner.
func (s *Self) Report(v any) error {
	if err := s.out.Encode(v); err != nil {
		return fmt.Errorf("reporting from worker %d: %w", s.Index, err)
	}
	return nil
}

// Wait returns when a gate is open.
func (s *Self) Wait(gate int) { WaitAtGate(gate) }
