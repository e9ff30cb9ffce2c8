package agent

import (
	"errors"
	"slices"
	"time"

	"ration/internal/job"
	"ration/machine"
)

// Totals adds what all users' jobs have of each device to the machine of an ordinary user, from an agent that
// sees the whole machine. One goroutine may use it. Its zero value is ready.
type Totals struct{ rest time.Time }

// Add adds the totals. Without an agent that answers, it changes nothing; the error is ErrSilent if one was
// asked now and did not answer.
func (t *Totals) Add(m *machine.Machine) error {
	if job.AllUsers() || t.Resting() {
		return nil // this process sees as much, or has waited a moment ago
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
	addTotals(m, &theirs)
	return nil
}

// Resting reports whether the agent has not answered lately, and is not asked.
func (t *Totals) Resting() bool { return time.Now().Before(t.rest) }

// onlySilent returns an error only if it is ErrSilent. Other errors are of no use to a command, which works
// without the agent.
func onlySilent(err error) error {
	if errors.Is(err, ErrSilent) {
		return err
	}
	return nil
}

func addTotals(m, theirs *machine.Machine) {
	if len(m.Devices) == 0 { // this program can load no driver
		m.Devices = theirs.Devices
	}
	for i := range m.Devices {
		g := &m.Devices[i]
		at := slices.IndexFunc(theirs.Devices, func(t machine.GPU) bool { return t.UUID == g.UUID })
		if at >= 0 && theirs.Devices[at].Rations >= g.Rations {
			g.Rations, g.Jobs, g.Unlimited = theirs.Devices[at].Rations, theirs.Devices[at].Jobs, theirs.Devices[at].Unlimited
		}
	}
	for _, f := range theirs.Findings {
		if f.Kind != machine.Overbooked {
			continue
		}
		same := func(own machine.Finding) bool { return own.Kind == f.Kind && own.Device == f.Device }
		if at := slices.IndexFunc(m.Findings, same); at >= 0 {
			m.Findings[at] = f // of all users' jobs, not of this one's alone
		} else {
			m.Findings = append(m.Findings, f)
		}
	}
}

// Booked returns the devices of a job as an agent knows them, by their numbers in the job, with the limits of
// all jobs on each. This job's limits are those of j, whether the agent has seen them or not. Devices that no
// agent sees are missing; the error is ErrSilent if an agent does not answer.
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

func booked(j *machine.Job, m *machine.Machine) map[int]machine.GPU {
	at := slices.IndexFunc(m.Jobs, func(known machine.Job) bool { return known.ID() == j.ID() })
	if at < 0 || m.Jobs[at].State == machine.Ended {
		return nil // the totals do not include it
	}
	out := map[int]machine.GPU{}
	for _, d := range j.Devices {
		was := slices.IndexFunc(m.Jobs[at].Devices, func(known machine.Device) bool { return known.Device == d.Device })
		of := slices.IndexFunc(m.Devices, func(g machine.GPU) bool { return g.UUID == d.UUID })
		if d.UUID == "" || was < 0 || of < 0 {
			continue
		}
		g := m.Devices[of]
		if known := &m.Jobs[at].Devices[was]; known.Limited && known.UUID == d.UUID {
			g.Rations -= min(known.Limit, g.Rations)
			g.Jobs--
		}
		if d.Limited {
			g.Rations += min(d.Limit, ^g.Rations)
			g.Jobs++
		}
		out[d.Device] = g
	}
	return out
}
