package agent

import (
	"time"

	"ration/machine"
)

// DefaultIdleAfter is how long a job does nothing before it is idle, unless the operator says otherwise.
const DefaultIdleAfter = 10 * time.Minute

// idleEvents returns an event for each job that has become idle between two snapshots.
func idleEvents(before, after []machine.Job, now time.Time) (out []machine.Event) {
	was := map[machine.JobID]time.Time{}
	for n := range before {
		was[before[n].ID()] = before[n].IdleSince
	}
	for n := range after {
		if j := &after[n]; !j.IdleSince.IsZero() && !j.IdleSince.Equal(was[j.ID()]) {
			out = append(out, j.IdleEvent(now))
		}
	}
	return out
}

// addIdle marks the jobs of a machine that an agent says are idle.
func addIdle(m, theirs *machine.Machine) {
	idle := map[machine.JobID]*machine.Job{}
	for n := range theirs.Jobs {
		if j := &theirs.Jobs[n]; !j.IdleSince.IsZero() {
			idle[j.ID()] = j
		}
	}
	for n := range m.Jobs {
		if j := &m.Jobs[n]; j.State == machine.Running && idle[j.ID()] != nil {
			of := idle[j.ID()]
			j.State, j.IdleSince, j.IdleAbout = machine.Idle, of.IdleSince, of.IdleAbout
		}
	}
}
