package usage

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"ration/internal/humanfmt"
	"ration/internal/termtext"
)

// Ways to add up accounts.
const (
	ByUser    = "user"
	ByProject = "project"
	ByJob     = "job"
	ByGPU     = "gpu"
)

// Ways lists them, for messages.
var Ways = []string{ByUser, ByProject, ByJob, ByGPU}

// Report says who used how much between two times.
type Report struct {
	From    time.Time `json:"from"`
	To      time.Time `json:"to"`
	Watched float64   `json:"watched_seconds"` // how much of the time an agent has watched
	By      string    `json:"by"`
	Lines   []Line    `json:"lines"` // most held first
	Total   Line      `json:"total"`
	Plot    *Plot     `json:"plot,omitempty"` // only if it was asked for
}

// Line is the use by a user, a project or a job, or of a GPU. A byte-second is one byte for one second.
type Line struct {
	User     string  `json:"user,omitempty"`
	Project  string  `json:"project,omitempty"`
	Job      string  `json:"job,omitempty"`
	GPU      string  `json:"gpu,omitempty"` // UUID
	Held     uint64  `json:"held_byte_seconds"`
	Error    uint64  `json:"held_error_byte_seconds"` // by how much it may be wrong: memory that changed between two looks, or that the driver does not confirm
	Reserved uint64  `json:"reserved_byte_seconds"`   // of the limits, while the jobs had not ended
	Idle     uint64  `json:"idle_byte_seconds"`       // held while the job did no work on the device
	Seconds  float64 `json:"gpu_seconds"`             // of the device's time
	Sampled  float64 `json:"sampled_gpu_seconds"`     // the part of these from the driver's samples, which are not exact
	Shared   float64 `json:"shared_gpu_seconds"`      // the part of these that is only an upper bound, because turns of others may be in it
	Peak     uint64  `json:"peak"`                    // bytes on one device by one job
	Refused  uint64  `json:"refused"`
	Died     uint64  `json:"died"`
	Asleep   float64 `json:"asleep_seconds"` // for which jobs slept, on each device of which they had memory put aside
}

// CheckWay returns an error unless accounts can be added up in this way.
func CheckWay(by string) error {
	if !slices.Contains(Ways, by) {
		return fmt.Errorf("by %.40q: there are user, project, job and gpu", by)
	}
	return nil
}

// Report adds up the accounts between two times, of the users that are visible.
func (s *Store) Report(from, to time.Time, by string, visible func(uid int) bool) (Report, error) {
	if err := CheckWay(by); err != nil {
		return Report{}, err
	}
	lines, sums, total := map[Line]int{}, []Sums{}, Sums{}
	index := indexed(by, visible, func(key Line) int {
		at, known := lines[key]
		if !known {
			at = len(sums)
			lines[key], sums = at, append(sums, Sums{})
		}
		return at
	})
	began, seen, err := s.Read(from, to, func(a *Account) {
		if at := index(a); at >= 0 {
			sums[at].add(a.Sums)
		}
	})
	for i := range sums {
		total.add(sums[i])
	}
	out := Report{From: began.UTC(), To: to.UTC(), Watched: seen.Seconds(), By: by, Lines: []Line{}, Total: Line{}.with(total)}
	for key, at := range lines {
		out.Lines = append(out.Lines, key.with(sums[at]))
	}
	slices.SortFunc(out.Lines, func(a, b Line) int {
		return cmp.Or(cmp.Compare(b.Held, a.Held), cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(a.User, b.User), cmp.Compare(a.Project, b.Project), cmp.Compare(a.Job, b.Job), cmp.Compare(a.GPU, b.GPU))
	})
	return out, err
}

// indexed returns a function that returns place(key) for the line of an account, or -1 if its user is not visible. It
// asks once for each subject: a year has millions of accounts.
func indexed(by string, visible func(uid int) bool, place func(key Line) int) func(*Account) int {
	of := map[uint32]int{}
	return func(a *Account) int {
		at, known := of[a.number]
		if !known {
			at = -1
			if visible(a.UID) {
				at = place(keyLine(by, *a.Subject))
			}
			of[a.number] = at
		}
		return at
	}
}

// keyLine returns the line that a subject belongs to, without its sums. Users choose names and projects: they are printable,
// also in a table of comma-separated values.
func keyLine(by string, s Subject) Line {
	s.Project, s.Job = termtext.Printable(s.Project), termtext.Printable(s.Job)
	s.Owner = cmp.Or(s.Owner, UnknownUser)
	switch by {
	case ByProject:
		return Line{Project: s.Project}
	case ByJob:
		return Line{User: s.Owner, Project: s.Project, Job: s.Job}
	case ByGPU:
		return Line{GPU: s.Device}
	}
	return Line{User: s.Owner}
}

// key returns the line without its sums.
func (l Line) key() Line { return Line{User: l.User, Project: l.Project, Job: l.Job, GPU: l.GPU} }

// with returns the line with sums.
func (l Line) with(s Sums) Line {
	seconds := func(ns uint64) float64 { return time.Duration(min(ns, 1<<62)).Seconds() }
	l.Held, l.Error, l.Reserved, l.Idle, l.Peak, l.Refused, l.Died = s.Held, s.Error, s.Reserved, s.Idle, s.Peak, s.Refused, s.Died
	l.Seconds, l.Sampled, l.Shared, l.Asleep = seconds(s.Measured)+seconds(s.Sampled), seconds(s.Sampled), seconds(s.Shared), seconds(s.Asleep)
	return l
}

// Hours renders the line's time of devices; with ~ if a part is from samples, otherwise with ≤ if a part was measured
// beside others.
func (l Line) Hours() string {
	if l.Seconds == 0 {
		return "0 h"
	}
	text := humanfmt.Three(l.Seconds/3600) + " h"
	if l.Sampled > 0 {
		return "~" + text
	}
	if l.Shared > 0 {
		return "≤" + text
	}
	return text
}

// AsleepHours renders the time for which jobs slept; empty if none did.
func (l Line) AsleepHours() string {
	if l.Asleep == 0 {
		return ""
	}
	return humanfmt.Three(l.Asleep/3600) + " h"
}

// IdlePart renders which part of the memory was held idle, in per cent.
func (l Line) IdlePart() string {
	if l.Held == 0 {
		return "–"
	}
	return humanfmt.Percent(100 * float64(l.Idle) / float64(l.Held))
}
