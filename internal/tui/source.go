package tui

import (
	"time"

	"ration/internal/job"
	"ration/internal/reap"
	"ration/internal/utilization"
	"ration/machine"
)

// Sample is the jobs as they were read at one time.
type Sample struct {
	Time time.Time
	Jobs []machine.Job
	Err  error // why the jobs could not be listed
}

// Source reads a sample. It is called from one goroutine at a time.
type Source func() Sample

// Measured adds to what a source reads how much of their devices' time processes had.
func Measured(source Source, m *utilization.Meter) Source {
	return func() Sample {
		s := source()
		m.Add(s.Jobs, s.Time)
		return s
	}
}

// AllJobs reads all of this user's jobs.
func AllJobs(opts reap.Options) Source {
	return func() Sample {
		now := time.Now()
		m, err := reap.Read(opts)
		return Sample{Time: now, Jobs: m.Jobs, Err: err}
	}
}

// OneJob reads one job.
func OneJob(j job.Job, opts reap.Options) Source {
	return func() Sample {
		return Sample{Time: time.Now(), Jobs: []machine.Job{reap.ReadJob(j, opts)}}
	}
}
