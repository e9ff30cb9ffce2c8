package tui

import (
	"time"

	"ration/internal/job"
)

// Sample is how things were at one moment.
type Sample struct {
	At   time.Time
	Jobs []job.Status
	Err  error // why there are none to be read
}

// Source reads a sample. It is called from one goroutine at a time.
type Source func() Sample

// Jobs reads all of this user's jobs. Where it may write and only is false, it
// gives back what dead processes hold.
func Jobs(only bool) Source {
	return func() Sample {
		at := time.Now()
		jobs, err := job.ReadAll(job.ReadOptions{ReadOnly: only})
		return Sample{At: at, Jobs: jobs, Err: err}
	}
}

// One reads one job.
func One(j job.Job, only bool) Source {
	return func() Sample {
		return Sample{At: time.Now(), Jobs: []job.Status{job.Read(j, job.ReadOptions{ReadOnly: only})}}
	}
}
