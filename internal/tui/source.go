package tui

import (
	"syscall"
	"time"

	"ration/internal/node"
	"ration/machine"
)

// Sample is the machine as it was read at one time.
type Sample struct {
	Time time.Time
	machine.Machine
	Err  error         // why the jobs could not be listed
	Past *node.History // what was before; nil but in the first sample, if that is known
}

// Source reads a sample. It is called from one goroutine at a time.
type Source func() Sample

// Actions are what the user may do to what is shown. They may block: they are called from
// goroutines of their own.
type Actions interface {
	// SetLimit parses text as ration limit parses what follows the job, changes the limits, and
	// returns what that command prints.
	SetLimit(j machine.Job, text string) (string, error)
	// Process finds the process that a row shows, by the kernel's word. j is nil for one that is
	// in no job.
	Process(j *machine.Job, p machine.Process) (*Process, error)
}

// Process is one process for as long as it lives: its PID can go to another process, but the handle
// stays with the one that was found.
type Process struct {
	PID        int
	Name, User string
	Handle     interface {
		Signal(signal syscall.Signal) error
		Close() error
	}
}
