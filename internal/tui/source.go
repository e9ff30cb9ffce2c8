package tui

import (
	"time"

	"ration/internal/job"
)

// Sample is the jobs as they were read at one time.
type Sample struct {
	Time time.Time
	Jobs []job.Status
	Err  error // why the jobs could not be listed
}

// Source reads a sample. It is called from one goroutine at a time.
type Source func() Sample

// AllJobs reads all of this user's jobs.
func AllJobs(opts job.ReadOptions) Source {
	return func() Sample {
		now := time.Now()
		jobs, err := job.ReadAll(opts)
		return Sample{Time: now, Jobs: jobs, Err: err}
	}
}

// OneJob reads one job.
func OneJob(j job.Job, opts job.ReadOptions) Source {
	return func() Sample {
		return Sample{Time: time.Now(), Jobs: []job.Status{job.Read(j, opts)}}
	}
}
