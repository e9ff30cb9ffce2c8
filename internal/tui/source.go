package tui

import (
	"errors"
	"io/fs"
	"time"

	"ration/internal/job"
	"ration/internal/region"
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
		s := Sample{At: time.Now()}
		jobs, err := job.List()
		if err != nil {
			s.Err = err
			return s
		}
		for _, j := range jobs {
			status := job.Look(j, only)
			if j.Name != "" && (errors.Is(status.Err(), fs.ErrNotExist) || errors.Is(status.Err(), region.ErrInit)) {
				continue // it ended while we looked, or has not begun
			}
			s.Jobs = append(s.Jobs, status)
		}
		return s
	}
}

// One reads one job.
func One(j job.Job, only bool) Source {
	return func() Sample {
		return Sample{At: time.Now(), Jobs: []job.Status{job.Look(j, only)}}
	}
}
