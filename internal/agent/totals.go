package agent

import (
	"errors"
	"slices"
	"time"

	"ration/internal/job"
	"ration/machine"
)

// Totals adds the totals of all users' jobs to an ordinary user's view of the devices, and marks the
// jobs that are idle. It gets both from an agent. The zero value is ready. It is not safe for concurrent
// use.
type Totals struct {
	rest time.Time
	all  bool // the latest Add knew the jobs of all users
}

// All reports whether the devices have the totals of all users' jobs after the latest Add. If not, they have those of
// this user's jobs.
func (t *Totals) All() bool { return t.all }

// Add adds the totals to m. Without an agent that answers, it changes nothing. It returns ErrSilent
// if it asked an agent now and got no answer.
func (t *Totals) Add(m *machine.Machine) error {
	t.all = job.AllUsers()
	if t.Resting() {
		return nil // it has waited in vain a moment ago
	}
	c, err := Find()
	if err != nil {
		return nil
	}
	theirs, err := c.Machine()
	if err != nil {
		t.rest = time.Now().Add(Rest)
		return onlySilent(err)
	}
	addIdle(m, &theirs)
	if !t.all { // root sees all jobs itself
		addTotals(m, &theirs)
		t.all = true
	}
	return nil
}

// Resting reports whether the agent did not answer lately and is not asked for now.
func (t *Totals) Resting() bool { return time.Now().Before(t.rest) }

// onlySilent returns err if it is ErrSilent, and nil otherwise: a command works without the agent,
// so other errors do not matter to it.
func onlySilent(err error) error {
	if errors.Is(err, ErrSilent) {
		return err
	}
	return nil
}

func addTotals(m, theirs *machine.Machine) {
	then := machine.Machine{Devices: withoutRations(theirs.Devices)} // of this user's jobs, as the agent has seen them, perhaps by other paths
	for i := range theirs.Jobs {
		if slices.ContainsFunc(m.Jobs, func(j machine.Job) bool { return j.Created.Equal(theirs.Jobs[i].Created) }) {
			then.Jobs = append(then.Jobs, theirs.Jobs[i])
		}
	}
	then.AddRations()
	if len(m.Devices) == 0 { // this program cannot load the driver library
		m.Devices = withoutRations(theirs.Devices)
		m.AddRations()
	}
	for i := range m.Devices {
		g := &m.Devices[i]
		at := slices.IndexFunc(theirs.Devices, func(t machine.GPU) bool {
			return t.UUID == g.UUID || t.Device == g.Device && g.Failed && g.UUID == "" // a GPU that failed may not say it any more
		})
		if at >= 0 && theirs.Devices[at].Total > g.Total {
			// Under a policy, and in a job, the driver tells this process the job's limit as the size of the
			// device, and what the job holds as used. The agent knows the device's own.
			g.Total, g.Used = theirs.Devices[at].Total, theirs.Devices[at].Used
		}
		if at >= 0 { // the limits of this user's jobs may have changed since the agent's scan
			all, was := &theirs.Devices[at], &then.Devices[at]
			g.Rations += min(all.Rations-min(was.Rations, all.Rations), ^g.Rations)
			g.Jobs += max(0, all.Jobs-was.Jobs)
			g.Unlimited += max(0, all.Unlimited-was.Unlimited)
		}
	}
	for _, f := range theirs.Findings {
		if f.Kind != machine.Overbooked {
			continue
		}
		same := func(own machine.Finding) bool { return own.Kind == f.Kind && own.Device == f.Device }
		if at := slices.IndexFunc(m.Findings, same); at >= 0 {
			m.Findings[at] = f // the agent's finding covers all users' jobs
		} else {
			m.Findings = append(m.Findings, f)
		}
	}
}

// withoutRations returns a copy of devices without the sums of their jobs.
func withoutRations(devices []machine.GPU) []machine.GPU {
	out := slices.Clone(devices)
	for i := range out {
		out[i].Rations, out[i].Jobs, out[i].Unlimited = 0, 0, 0
	}
	return out
}

// Booked returns the devices of a job as an agent sees them, by their number in the job, with the
// limits of all jobs on each. For this job it uses the limits in j, because the agent may not have
// seen them yet. A device that the agent does not see is missing. The error is ErrSilent if an
// agent does not answer.
func Booked(j *machine.Job) (map[int]machine.GPU, error) {
	c, err := Find()
	if err != nil {
		return nil, nil
	}
	m, err := c.Machine()
	if err != nil {
		return nil, onlySilent(err)
	}
	return booked(j, &m), nil
}

// besidePolicy is a variable for tests.
var besidePolicy = machine.BesidePolicy

func booked(j *machine.Job, m *machine.Machine) map[int]machine.GPU {
	at := slices.IndexFunc(m.Jobs, func(known machine.Job) bool { return known.ID() == j.ID() })
	if at < 0 || m.Jobs[at].State == machine.Ended || besidePolicy()(&m.Jobs[at]) {
		return nil // the totals do not include this job, or not yet
	}
	out := map[int]machine.GPU{}
	for _, d := range j.Devices {
		was := slices.IndexFunc(m.Jobs[at].Devices, func(known machine.Device) bool { return known.Device == d.Device })
		of := slices.IndexFunc(m.Devices, func(g machine.GPU) bool { return g.UUID == d.UUID })
		if d.UUID == "" || was < 0 || of < 0 {
			continue
		}
		g := m.Devices[of]
		if known := &m.Jobs[at].Devices[was]; known.Limited && known.Limit > 0 && known.UUID == d.UUID {
			g.Rations -= min(known.Limit, g.Rations)
			g.Jobs--
		}
		if d.Limited && d.Limit > 0 {
			g.Rations += min(d.Limit, ^g.Rations)
			g.Jobs++
		}
		out[d.Device] = g
	}
	return out
}
