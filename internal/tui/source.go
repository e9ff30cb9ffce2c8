package tui

import (
	"syscall"
	"time"

	"ration/internal/node"
	"ration/machine"
)

// Sample is the machine as of one read.
type Sample struct {
	Time time.Time
	machine.Machine
	Mine bool          // the devices have the limits of this user's jobs only
	Err  error         // why the jobs could not be listed
	Past *node.History // history from before; only in the first sample, if known
}

// Source reads a sample. It is called from one goroutine at a time.
type Source func() Sample

// StopGrace is the time between SIGTERM and SIGKILL of Stop.
const StopGrace = 10 * time.Second

// Actions are the changes that the user may make. They may block, so they are called from
// goroutines of their own.
type Actions interface {
	// SetLimit parses text like the arguments of ration limit after the job, changes the limits,
	// and returns the output of that command.
	SetLimit(j machine.Job, text string) (string, error)
	// Stop ends all processes of a job as ration stop does, and returns its output.
	Stop(j machine.Job) (string, error)
	// Signal sends a signal to all processes of a job as ration signal does, and returns its output.
	Signal(j machine.Job, signal syscall.Signal) (string, error)
	// Process finds a process, confirmed by the kernel. region is the path of its job's region, or
	// empty if it is in no job.
	Process(id machine.ProcessID, region string) (*Process, error)
}

// Process is a handle of one process. Its PID may be reused, but the handle still refers to the
// same process.
type Process struct {
	PID        int
	Name, User string
	Handle     interface {
		Signal(signal syscall.Signal) error
		Close() error
	}
}
