// Package procgroup starts processes of this same program that act together: they
// wait at gates and pass them all at once, report what they measured, and can be
// stopped or killed one by one. The self-test, the benchmarks and the demo are
// made of crews, because what ration promises is about processes, and only real
// ones die for real. Process is for those of another program.
//
// A worker shares three pipes with its crew. Standard input carries nothing: it
// ends when the crew does, and then so does the worker. Standard output carries
// its reports, a JSON value each, or why it gives up. Each gate is a pipe whose writing end the crew
// closes, which wakes every worker behind it in one step.
package procgroup

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"time"
)

// Command is the first argument of a worker's command line; its rest is for Serve.
const Command = "worker"

// readyWithin is how long workers may take to start: they do nothing but that,
// so only a machine that has come to a halt needs longer.
const readyWithin = time.Minute

// ErrLate is returned when a worker has not reported, or not ended, in time.
var ErrLate = errors.New("worker is late")

// Spec describes a crew.
type Spec struct {
	Role  string          // what they do: a key of the roles given to Serve
	N     int             // how many they are
	Gates int             // how many gates they pass
	Task  func(i int) any // what the i-th is told, marshalled to JSON
}

// Crew is processes that were started together.
type Crew struct {
	Workers []*Worker

	life   *os.File
	gates  []*os.File
	stderr *Tail
}

// Start starts a crew, and returns when all of it waits to be told more.
func Start(spec Spec) (_ *Crew, err error) {
	c := &Crew{stderr: &Tail{}}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	var ours []*os.File // reading ends, which only workers need
	defer func() {
		for _, f := range ours {
			_ = f.Close()
		}
	}()
	pipe := func() (*os.File, *os.File, error) {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, nil, fmt.Errorf("making a pipe to a worker: %w", err)
		}
		return r, w, nil
	}
	life, w, err := pipe()
	if err != nil {
		return nil, err
	}
	c.life, ours = w, append(ours, life)
	for range spec.Gates {
		r, w, err := pipe()
		if err != nil {
			return nil, err
		}
		c.gates, ours = append(c.gates, w), append(ours, r)
	}
	complaints, w, err := pipe()
	if err != nil {
		return nil, err
	}
	ours = append(ours, w)
	go func() {
		defer complaints.Close()
		_, _ = io.Copy(c.stderr, complaints) // until the last worker has ended
	}()

	for i := range spec.N {
		worker, err := start(spec, i, life, w, ours[1:1+spec.Gates])
		if err != nil {
			return nil, err
		}
		worker.crew = c
		c.Workers = append(c.Workers, worker)
	}
	_, err = Gather[ready](c, readyWithin)
	return c, err
}

func start(spec Spec, i int, life, stderr *os.File, gates []*os.File) (*Worker, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	task, err := json.Marshal(spec.Task(i))
	if err != nil {
		return nil, fmt.Errorf("telling a worker its task: %w", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("making a pipe to a worker: %w", err)
	}
	defer w.Close()
	cmd := exec.Command(exe, Command, spec.Role, strconv.Itoa(i), string(task))
	cmd.Args[0] = os.Args[0] // a test binary goes by its name
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = life, w, stderr, gates
	process, err := Launch(fmt.Sprintf("worker %d", i), cmd)
	if err != nil {
		_ = r.Close()
		return nil, err
	}
	worker := &Worker{Process: process, Index: i, reports: make(chan json.RawMessage, 16)}
	go worker.listen(r)
	return worker, nil
}

// Open opens a gate: all who wait at it go on, and nobody waits there any more.
func (c *Crew) Open(gate int) { _ = c.gates[gate].Close() }

// Close ends whoever has not ended, and waits for all.
func (c *Crew) Close() {
	for _, w := range c.Workers {
		w.kill()
	}
	for _, w := range c.Workers {
		<-w.wait()
	}
	for _, f := range append(c.gates, c.life) {
		if f != nil {
			_ = f.Close()
		}
	}
}

// Gather takes one report from each worker, in their order.
func Gather[T any](c *Crew, within time.Duration) ([]T, error) {
	out := make([]T, len(c.Workers))
	deadline := time.Now().Add(within)
	for i, w := range c.Workers {
		if err := w.Receive(&out[i], time.Until(deadline)); err != nil {
			return out, err
		}
	}
	return out, nil
}
