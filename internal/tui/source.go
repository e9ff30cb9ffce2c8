package tui

import (
	"syscall"
	"time"

	"ration/internal/job"
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

// Source reads a sample, from wherever: the files of the jobs, or a program that watches them.
// It is called from one goroutine at a time.
type Source func() Sample

// AllJobs reads the machine with all jobs that this user can see.
func AllJobs(r *node.Reader, opts node.Options) Source {
	return func() Sample {
		now := time.Now()
		m, err := r.Read(opts)
		r.AddTimes(m.Jobs, now)
		return Sample{Time: now, Machine: m, Err: err}
	}
}

// OneJob reads the machine with one job only: what is in no job is not known then.
func OneJob(r *node.Reader, j job.Job, opts node.Options) Source {
	return func() Sample {
		m := r.ReadJob(j, opts)
		now := time.Now()
		r.AddTimes(m.Jobs, now)
		return Sample{Time: now, Machine: m}
	}
}

// Actions are what the user may do to what is shown. They may block: they are called from
// goroutines of their own.
type Actions interface {
	// SetLimit parses text as ration limit parses what follows the job, changes the limits, and
	// returns what that command prints.
	SetLimit(j machine.Job, text string) (string, error)
	// Process finds the process that a row shows, by the kernel's word. j is nil for one that is
	// in no job.
	Process(j *machine.Job, p machine.Process) (Process, error)
}

// Process is one process for as long as it lives: its PID can go to another process, but this
// stays with the one that was found.
type Process interface {
	PID() int
	Name() string
	User() string
	Signal(signal syscall.Signal) error
	Close() error
}
