package agent

import (
	"slices"
	"time"

	"ration/internal/job"
	"ration/machine"
)

// totalsRest is for how long an agent that has not answered is not asked again.
const totalsRest = 10 * time.Second

// Totals adds to what an ordinary user sees of the machine what an agent of the whole machine says:
// what all users' jobs have of each device. It is not for use by several goroutines at once. Its
// zero value is ready.
type Totals struct{ rest time.Time }

// Add adds it. Without an agent, or with one that does not answer, all stays as it is.
func (t *Totals) Add(m *machine.Machine) {
	if job.AllUsers() || time.Now().Before(t.rest) {
		return // this process sees as much, or is not to wait once more
	}
	c, err := Find()
	if err != nil {
		return
	}
	theirs, err := c.Machine()
	if err != nil {
		t.rest = time.Now().Add(totalsRest)
		return
	}
	addTotals(m, &theirs)
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
