package procgroup

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// ErrUsage is returned by Serve for a command line that Start did not make.
var ErrUsage = errors.New("not started by ration (this command is not for people)")

// firstGate is the descriptor of a worker's first gate.
const firstGate = 3

// Role is what a worker does.
type Role func(*Self) error

// Self is a worker as it sees itself: its task, its reports and its gates.
type Self struct {
	Index int

	task []byte
	out  *json.Encoder
}

// ready is the first report of every worker.
type ready struct{}

// Serve runs a worker by its command line, without Command. The owner finds the
// error of a role in the worker's log and exit status.
func Serve(args []string, roles map[string]Role) error {
	if len(args) != 3 {
		return ErrUsage
	}
	role := roles[args[0]]
	index, err := strconv.Atoi(args[1])
	if role == nil || err != nil {
		return ErrUsage
	}
	s := &Self{Index: index, task: []byte(args[2]), out: json.NewEncoder(os.Stdout)}
	if err := s.Report(ready{}); err != nil {
		return err
	}
	return role(s)
}

// Task decodes the worker's task into v.
func (s *Self) Task(v any) error {
	if err := json.Unmarshal(s.task, v); err != nil {
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

// Wait returns when a gate is open. It blocks in the kernel, on a thread of its
// own, so that the Go scheduler does not delay what follows.
func (s *Self) Wait(gate int) {
	var b [1]byte
	for {
		n, err := unix.Read(firstGate+gate, b[:])
		if n == 0 && err == nil || err != nil && err != unix.EINTR {
			return
		}
	}
}
