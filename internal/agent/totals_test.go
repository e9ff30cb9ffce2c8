package agent

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"ration/internal/job"
	"ration/machine"
)

const gib = 1 << 30

// An ordinary user sees what all users' jobs have of each device, and that it is overbooked by all of
// them; what the user has is not taken away where the agent has not seen it yet.
func TestAddTotals(t *testing.T) {
	theirs := &machine.Machine{Devices: []machine.GPU{{Device: 0, UUID: "a", Rations: 30 * gib, Jobs: 3}, {Device: 1, UUID: "b", Rations: gib, Jobs: 1}},
		Findings: []machine.Finding{{Kind: machine.Overbooked, Device: 0, Text: "3 jobs"}, {Kind: machine.Drift, Text: "not of the machine"}}}
	own := machine.Machine{Devices: []machine.GPU{{Device: 0, UUID: "a", Rations: 12 * gib, Jobs: 1, Used: 5}, {Device: 1, UUID: "b", Rations: 2 * gib, Jobs: 2}},
		Findings: []machine.Finding{{Kind: machine.Overbooked, Device: 0, Text: "1 job"}}}
	addTotals(&own, theirs)
	if g := own.Devices[0]; g.Rations != 30*gib || g.Jobs != 3 || g.Used != 5 {
		t.Errorf("got %+v", g)
	}
	if g := own.Devices[1]; g.Rations != 2*gib || g.Jobs != 2 {
		t.Errorf("got %+v", g)
	}
	if len(own.Findings) != 1 || own.Findings[0].Text != "3 jobs" {
		t.Errorf("got %+v", own.Findings)
	}
	none := machine.Machine{}
	if addTotals(&none, theirs); len(none.Devices) != 2 || len(none.Findings) != 1 {
		t.Errorf("got %+v", none)
	}
}

// What all jobs have of a device counts a job's limit as it is, whether the agent has seen the change
// or not.
func TestBooked(t *testing.T) {
	limited := func(limit uint64) machine.Job {
		return machine.Job{Path: "p", Created: time.Unix(0, 7).UTC(), State: machine.Running, Devices: []machine.Device{{Device: 2, UUID: "a", Limited: limit > 0, Limit: limit}, {Device: 3}}}
	}
	agentSees := func(limit uint64) *machine.Machine {
		jobs := 1
		if limit > 0 {
			jobs++
		}
		return &machine.Machine{Devices: []machine.GPU{{Device: 0, UUID: "a", Total: 40 * gib, Rations: 10*gib + limit, Jobs: jobs}}, Jobs: []machine.Job{limited(limit)}}
	}
	now := limited(35 * gib)
	for _, seen := range []uint64{0, 20 * gib, 35 * gib} {
		if got := booked(&now, agentSees(seen)); len(got) != 1 || got[2].Rations != 45*gib || got[2].Jobs != 2 {
			t.Errorf("it has seen %d: %+v", seen, got)
		}
	}
	none := limited(0)
	if got := booked(&none, agentSees(20*gib)); got[2].Rations != 10*gib || got[2].Jobs != 1 {
		t.Errorf("got %+v", got)
	}
	other := limited(gib)
	other.Created = time.Unix(0, 8)
	if got := booked(&other, agentSees(gib)); len(got) != 0 {
		t.Errorf("of another job: %+v", got)
	}
}

// Who asks again and again does not wait again and again for an agent that does not answer.
func TestTotalsRest(t *testing.T) {
	folder := testFolder(t)
	silent, err := net.Listen("unix", filepath.Join(folder, job.AgentSocket))
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	asked := make(chan struct{}, 100)
	go func() {
		for {
			if _, err := silent.Accept(); err != nil { // and says nothing
				return
			}
			asked <- struct{}{}
		}
	}()
	var totals Totals
	totals.Add(&machine.Machine{})
	n := len(asked)
	if n == 0 || totals.rest.IsZero() {
		t.Fatalf("it was asked %d times", n)
	}
	for range 3 {
		totals.Add(&machine.Machine{})
	}
	if len(asked) != n {
		t.Errorf("it was asked %d times more", len(asked)-n)
	}
	totals.rest = time.Now()
	totals.Add(&machine.Machine{})
	if len(asked) == n {
		t.Error("it was not asked again")
	}
}
