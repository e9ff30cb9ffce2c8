package procgroup

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// ErrUsage is returned by Serve for a command line that no crew made.
var ErrUsage = errors.New("not started by ration (this command is not for people)")

// firstGate is the descriptor of a worker's first gate.
const firstGate = 3

// Role is what a worker does.
type Role func(*Post) error

// Post is a worker's place in its crew, as the worker sees it.
type Post struct {
	Index int

	task []byte
	out  *json.Encoder
}

// ready is the first report of every worker.
type ready struct{}

// message is what goes through a worker's pipe: a report, or why it gives up.
type message struct {
	Report json.RawMessage `json:"report,omitempty"`
	Error  string          `json:"error,omitempty"`
}

// Serve does what a worker's command line says, after Command.
func Serve(args []string, roles map[string]Role) error {
	if len(args) != 3 {
		return ErrUsage
	}
	role := roles[args[0]]
	index, err := strconv.Atoi(args[1])
	if role == nil || err != nil {
		return ErrUsage
	}
	p := &Post{Index: index, task: []byte(args[2]), out: json.NewEncoder(os.Stdout)}
	go followCrew()
	if err := p.Report(ready{}); err != nil {
		return err
	}
	if err := role(p); err != nil {
		// By the same pipe as the reports, so that it comes after the last of them.
		return errors.Join(err, p.send(message{Error: err.Error()}))
	}
	return nil
}

// followCrew ends this process when its crew is gone, however that went.
func followCrew() {
	awaitEnd(0)
	os.Exit(1)
}

// awaitEnd returns when nobody can write to a pipe any more. Nobody ever does.
func awaitEnd(fd int) {
	var b [1]byte
	for {
		n, err := unix.Read(fd, b[:])
		if n == 0 && err == nil || err != nil && err != unix.EINTR {
			return
		}
	}
}

// Task reads what this worker is told into v.
func (p *Post) Task(v any) error {
	if err := json.Unmarshal(p.task, v); err != nil {
		return fmt.Errorf("reading the task of worker %d: %w", p.Index, err)
	}
	return nil
}

// Report tells the crew something.
func (p *Post) Report(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("reporting from worker %d: %w", p.Index, err)
	}
	return p.send(message{Report: b})
}

func (p *Post) send(m message) error {
	if err := p.out.Encode(m); err != nil {
		return fmt.Errorf("reporting from worker %d: %w", p.Index, err)
	}
	return nil
}

// Wait returns when a gate is open. It sleeps in the kernel, on a thread of its
// own, so that nothing but the kernel stands between the gate and what follows.
func (p *Post) Wait(gate int) { awaitEnd(firstGate + gate) }

// Passed says whether a gate is open, without waiting.
func (p *Post) Passed(gate int) bool {
	fds := []unix.PollFd{{Fd: int32(firstGate + gate), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return n > 0 && err == nil
}
