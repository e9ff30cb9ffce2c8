package node

import (
	"slices"
	"sync"
	"time"

	"ration/machine"
)

// mpsName is how the kernel names the server of NVIDIA's MPS, cut at 15 characters.
const mpsName = "nvidia-cuda-mps"

// Idleness finds jobs that hold memory and do nothing on their devices. It uses only what the library and the driver
// say about the device, never what a process does on the host. If that is unknown of one process, the job's time
// begins again: a job is never idle by a guess. It is safe for concurrent use.
type Idleness struct {
	after time.Duration

	mu   sync.Mutex
	jobs map[machine.JobID]resting
}

// resting is a job that has done nothing.
type resting struct {
	since  time.Time
	about  bool   // the driver's samples say so
	held   uint64 // bytes
	sleeps uint64 // how often the job had begun to fall asleep
}

// NewIdleness returns one that marks jobs which have done nothing for that long.
func NewIdleness(after time.Duration) *Idleness {
	return &Idleness{after: after, jobs: map[machine.JobID]resting{}}
}

// Look notes which jobs have done nothing lately. Their holdings have times (Reader.AddTimes).
func (i *Idleness) Look(m *machine.Machine, now time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	before := i.jobs
	i.jobs = make(map[machine.JobID]resting, len(before))
	for n := range m.Jobs {
		j := &m.Jobs[n]
		held, about, rests := rests(m, j)
		if !rests {
			continue
		}
		was, known := before[j.ID()]
		// A job that allocates or frees memory does something, and so does one that has woken.
		if !known || was.held != held || was.sleeps != j.Sleeps {
			was = resting{since: now.UTC(), held: held, sleeps: j.Sleeps}
		}
		was.about = about
		i.jobs[j.ID()] = was
	}
}

// rests reports whether a job holds memory and is known to do nothing on its devices, how much it holds, and whether
// that is known from the driver's samples.
func rests(m *machine.Machine, j *machine.Job) (held uint64, about, rests bool) {
	if j.State == machine.Ended || j.Error != "" || j.Omitted != nil {
		return 0, false, false
	}
	for n := range j.Devices {
		d := &j.Devices[n]
		if d.Escaped != 0 { // processes outside the job, of which nothing else is known
			return 0, false, false
		}
		held += min(max(d.Used, d.Driver), ^held)
	}
	for n := range j.Processes {
		if j.Processes[n].State == machine.Dead {
			continue
		}
		for _, h := range j.Processes[n].Holdings {
			if h.Time == nil || h.Time.Percent > 0 || h.Compute != nil && (h.Compute.Working > 0 || h.Compute.Waiting) {
				return 0, false, false
			}
			about = about || h.Time.About
		}
	}
	return held, about, held > 0 && !(about && behindMPS(m, j))
}

// UnknownText says why a job does not fall asleep whose work is not known.
const UnknownText = "in this PID namespace it is not known whether the job works; it is of a job with --compute-max"

// WorkUnknown reports whether nothing can say that a job does nothing on its devices: the driver's samples name processes
// by their PIDs on the host, and only while a job has a cap the library measures its time.
func WorkUnknown(j *machine.Job) bool {
	return slices.ContainsFunc(j.Processes, func(p machine.Process) bool {
		return p.State != machine.Dead && p.HostPID == 0 && slices.ContainsFunc(p.Holdings, func(h machine.Holding) bool { return !j.Measured(h.Device) })
	})
}

// behindMPS reports whether the driver may count the job's work for a server of MPS. A process chooses its own name,
// so only a server of root or of the job's user counts: no user can hide another user's job.
func behindMPS(m *machine.Machine, j *machine.Job) bool {
	for n := range m.Outside {
		if o := &m.Outside[n]; o.Name == mpsName && (o.UID == 0 || o.UID == j.UID) {
			return true
		}
	}
	return false
}

// Mark returns the jobs with those that have become idle marked.
func (i *Idleness) Mark(jobs []machine.Job, now time.Time) []machine.Job {
	i.mu.Lock()
	defer i.mu.Unlock()
	out := append([]machine.Job(nil), jobs...) // the scanner compares its own with what it reads next
	for n := range out {
		j := &out[n]
		if was, known := i.jobs[j.ID()]; known && i.after > 0 && j.State == machine.Running && now.Sub(was.since) >= i.after {
			j.State, j.IdleSince, j.IdleAbout = machine.Idle, was.since, was.about
		}
	}
	return out
}

// Since returns since when a job has done nothing. known is false if it works, holds nothing, or if that is unknown.
func (i *Idleness) Since(id machine.JobID) (since time.Time, known bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	was, known := i.jobs[id]
	return was.since, known
}
