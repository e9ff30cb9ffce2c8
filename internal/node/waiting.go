package node

import (
	"fmt"
	"slices"

	"ration/machine"
)

// Waiting is the state that is shown for a command that waits for room. Its job does not exist yet.
const Waiting = "waiting"

// waitingJob returns a command that waits as a job, for lists of jobs.
func waitingJob(w *machine.Waiting) machine.Job {
	j := machine.Job{Name: w.Job, Path: w.Path, Owner: w.Owner, UID: w.UID, State: Waiting, Started: w.Since}
	for _, one := range w.Wants {
		d := machine.Device{Device: one.Device, Limited: true, Limit: one.Bytes}
		if one.Device >= 0 {
			d.Total = one.Bytes // at least: it is a device of the machine
		}
		j.Devices = append(j.Devices, d)
	}
	return j
}

// WaitingJobs returns the commands that wait as jobs. A job that sleeps, and waits to wake, is a job already.
func WaitingJobs(all []machine.Waiting) (out []machine.Job) {
	for i := range all {
		if !all[i].Wakes {
			out = append(out, waitingJob(&all[i]))
		}
	}
	return out
}

// WaitingText says what a command waits for, and where in the queue.
func WaitingText(w *machine.Waiting) string {
	return fmt.Sprintf("place %d in the queue, for %s", w.Place, w.WantsText())
}

// HasWaiting reports whether a command that waits is selected.
func (s Selection) HasWaiting(w *machine.Waiting) bool {
	j := waitingJob(w)
	return s.Has(&j)
}

// WaitingAt returns the command that waits and will make the job at a path, or nil.
func WaitingAt(m *machine.Machine, path string) *machine.Waiting {
	i := slices.IndexFunc(m.Waiting, func(w machine.Waiting) bool { return w.Path == path && path != "" && !w.Wakes })
	if i < 0 {
		return nil
	}
	return &m.Waiting[i]
}
