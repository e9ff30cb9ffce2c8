package machine

import (
	"slices"
	"strings"
	"time"

	"ration/internal/job"
	"ration/internal/termtext"
)

// A region that root's scan found only by its lock, in no folder of jobs, may be of a program on a stand-in driver, or of a
// benchmark: it has limits and accounts of devices that this machine does not have. What it says of them counts for no
// device here. That is a claim of its owner, who may write any UUID, or none. So it is believed only of a job of which the
// driver lists no process: what a process holds on a device of this machine is the driver's word, and then its job is a
// job of this machine.

// splitElsewhere moves the jobs that are on no device of this machine from Jobs to Elsewhere. listed are the jobs with a
// process in the driver's list.
func (m *Machine) splitElsewhere(listed holders) {
	here := make([]Job, 0, len(m.Jobs))
	for i := range m.Jobs {
		j := &m.Jobs[i]
		if listed[j] != nil || !m.isElsewhere(j) {
			here = append(here, *j)
			continue
		}
		m.Elsewhere = append(m.Elsewhere, *j)
		m.Elsewhere[len(m.Elsewhere)-1].Elsewhere = true
	}
	m.Jobs = here
}

// isElsewhere reports whether a job was found only by its lock, and names no device of this machine.
func (m *Machine) isElsewhere(j *Job) bool {
	if _, is := job.PolicyUser(j.Path); is || !j.byLock || j.Name != "" || j.Error != "" || len(m.Devices) == 0 {
		return false
	}
	return !slices.ContainsFunc(j.Devices, func(d Device) bool { return m.names(&d) })
}

// names reports whether a job's device is one of this machine by its UUID, or may be.
func (m *Machine) names(d *Device) bool {
	return slices.ContainsFunc(m.Devices, func(g GPU) bool {
		switch {
		case g.Failed && g.UUID == "": // nobody knows which it is
			return true
		case g.MIG && strings.HasPrefix(d.UUID, "MIG-"):
			return true
		}
		return d.UUID != "" && d.UUID == g.UUID
	})
}

// withoutElsewhere removes the events of jobs that are, or were until they went, on no device of this machine. A job that was
// on one and now is not has ended here. The events of a job that was on none, and now is, are all those that its region has.
func withoutElsewhere(events []Event, before, after *Machine, now time.Time) []Event {
	if before == nil {
		before = &Machine{}
	}
	drop := map[JobID]bool{}
	for _, all := range [][]Job{before.Elsewhere, after.Elsewhere} {
		for i := range all {
			drop[all[i].ID()] = true
		}
	}
	for i := range before.Jobs {
		j := &before.Jobs[i]
		if !drop[j.ID()] {
			continue
		}
		delete(drop, j.ID())
		if j.State != Ended {
			e := j.event(JobEnded, now)
			e.Text = termtext.Printable(j.withOwner() + " is on no GPU of this machine any more")
			events = append(events, e)
		}
	}
	if len(drop) == 0 {
		return events
	}
	events = slices.DeleteFunc(events, func(e Event) bool { return drop[e.JobID()] })
	here := Machine{}
	for i := range after.Jobs {
		if drop[after.Jobs[i].ID()] {
			here.Jobs = append(here.Jobs, after.Jobs[i])
		}
	}
	events = append(events, Events(&Machine{}, &here, now)...)
	slices.SortStableFunc(events, func(a, b Event) int { return a.Time.Compare(b.Time) })
	return events
}
