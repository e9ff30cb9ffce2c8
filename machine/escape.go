package machine

import (
	"path/filepath"
	"slices"
	"time"

	"ration/internal/gpu"
	"ration/internal/job"
	"ration/internal/proc"
	"ration/internal/termtext"
)

// Escape is a job over a limit that an operator owns, with the processes that hold the memory. The kernel
// says which processes these are, and the driver what they hold: nothing that the job can write.
type Escape struct {
	Job       JobID
	Title     string // of the job
	Device    int    // the device's number in the job
	Over      uint64 // bytes beyond the limit
	Processes []Escapee

	event Event // without what happened
}

// Event returns the event that the agent has ended, or is about to end, processes of the job.
func (e *Escape) Event(at time.Time, stop Stop, text string) Event {
	out := e.event
	out.Time, out.Stop, out.Text = at.UTC(), &stop, termtext.Printable(text)
	return out
}

// Stop is what the agent does to processes of a job that is over its limit.
type Stop struct {
	Time   time.Time `json:"at"`
	Signal string    `json:"signal,omitempty"` // SIGTERM or SIGKILL; empty if it is announced
	PIDs   []int     `json:"pids"`             // processes that got the signal, or will get it
	Device int       `json:"device"`           // the device's number in the job
	Over   uint64    `json:"over"`             // bytes beyond the limit
}

// Escapee is a process of an Escape.
type Escapee struct {
	PID     int
	Started uint64 // in clock ticks since boot; with the PID this identifies the process
	UID     int    // its real UID
	Outside bool   // it is in no job: a policy's user has started it past the library
}

// unnamed stands for a device of the machine that a job does not name.
const unnamed = -1

// holder is a process that holds memory of a device of the machine, as the driver says.
type holder struct {
	gpu.Process
	outside bool // it is in no job
}

// holders are the processes of jobs that hold memory, by the index in Job.Devices, or unnamed.
type holders map[*Job]map[int][]holder

func (h holders) add(j *Job, n int, process holder) {
	if h[j] == nil {
		h[j] = map[int][]holder{}
	}
	h[j][n] = append(h[j][n], process)
}

// addEscapes lists the operator's jobs that are over their limits. asked is when the driver was asked.
func (m *Machine) addEscapes(held holders, asked uint64) {
	for i := range m.Jobs {
		j := &m.Jobs[i]
		if filepath.Dir(filepath.Dir(j.Path)) != job.RootFolder {
			continue // its user has set the limit
		}
		for n := range j.Devices {
			if d := &j.Devices[n]; d.Over() > 0 {
				m.Escapes = append(m.Escapes, Escape{j.ID(), j.Title(), d.Device, d.Over(), escapees(d, held[j][n], asked), j.event(ProcessesStopped, time.Time{})})
			}
		}
	}
}

// escapees returns the processes that put a job over its limit. If those in the job are within it, these are
// only the others. It leaves out a process that may be another one than the driver has counted.
func escapees(d *Device, of []holder, asked uint64) (out []Escapee) {
	inside := d.compared()
	for _, h := range of {
		if h.outside {
			inside -= min(h.Used, inside)
		}
	}
	spare := overBy(inside, d.Limit) == 0
	for _, h := range of {
		if spare && !h.outside || slices.ContainsFunc(out, func(e Escapee) bool { return e.PID == h.PID }) {
			continue
		}
		started, err := proc.Started(h.PID)
		if err != nil || started >= asked {
			continue // it has ended, and its PID may be another process's
		}
		if uid, _, _, err := proc.Owner(h.PID); err == nil {
			out = append(out, Escapee{h.PID, started, uid, h.outside})
		}
	}
	return out
}
