package agent

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/job"
	"ration/machine"
)

const gib = 1 << 30

// An ordinary user sees what all users' jobs have of each device, and that it is overbooked by all of
// them; what the user has is not taken away where the agent has not seen it yet.
func TestAddTotals(t *testing.T) {
	limited := func(path string, made int64, uuid string, limit uint64) machine.Job {
		return machine.Job{Path: path, Created: time.Unix(made, 0), State: machine.Running, Devices: []machine.Device{{UUID: uuid, Limited: true, Limit: limit}}}
	}
	theirs := &machine.Machine{Devices: []machine.GPU{{Device: 0, UUID: "a", Rations: 30 * gib, Jobs: 3}, {Device: 1, UUID: "b", Rations: gib, Jobs: 1}},
		Jobs:     []machine.Job{limited("/host/p", 1, "a", 20*gib), limited("elsewhere", 2, "b", gib)}, // the first has 12 GiB now
		Findings: []machine.Finding{{Kind: machine.Overbooked, Device: 0, Text: "3 jobs"}, {Kind: machine.Drift, Text: "not of the machine"}}}
	own := machine.Machine{Devices: []machine.GPU{{Device: 0, UUID: "a", Rations: 12 * gib, Jobs: 1, Used: 5}, {Device: 1, UUID: "b", Rations: 2 * gib, Jobs: 2}},
		Jobs:     []machine.Job{limited("p", 1, "a", 12*gib), limited("new", 3, "b", 2*gib)},
		Findings: []machine.Finding{{Kind: machine.Overbooked, Device: 0, Text: "1 job"}}}
	addTotals(&own, theirs)
	g := own.Devices[0]
	expect.True(t, g.Rations == 22*gib && g.Jobs == 3 && g.Used == 5, g)
	g = own.Devices[1]
	expect.True(t, g.Rations == 3*gib && g.Jobs == 3, g)
	expect.True(t, len(own.Findings) == 1 && own.Findings[0].Text == "3 jobs", own.Findings)
	// Under a policy the driver tells this process its job's limit and use.
	theirs.Devices[0].Total, theirs.Devices[0].Used, theirs.Devices[1].Total, theirs.Devices[1].Used = 140*gib, 90*gib, 140*gib, 80*gib
	ruled := machine.Machine{Devices: []machine.GPU{{Device: 0, UUID: "a", Total: 20 * gib, Used: 15 * gib}, {Device: 1, UUID: "b", Total: 140 * gib, Used: 81 * gib}}}
	addTotals(&ruled, theirs)
	g = ruled.Devices[0]
	expect.True(t, g.Total == 140*gib && g.Used == 90*gib && g.Rations == 30*gib, g)
	expect.Equal(t, ruled.Devices[1].Used, uint64(81*gib), "what this process has asked for itself is newer")
	failed := machine.Machine{Devices: []machine.GPU{{Device: 0, UUID: "a"}, {Device: 1, Failed: true}}}
	addTotals(&failed, theirs)
	g = failed.Devices[1]
	expect.True(t, g.Rations == gib && g.Jobs == 1, "a GPU that failed after the agent was started", g)
	none := machine.Machine{Jobs: own.Jobs[:1]}
	if addTotals(&none, theirs); len(none.Devices) != 2 || len(none.Findings) != 1 || none.Devices[0].Rations != 22*gib || theirs.Devices[0].Rations != 30*gib {
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
		got := booked(&now, agentSees(seen))
		expect.True(t, len(got) == 1 && got[2].Rations == 45*gib && got[2].Jobs == 2, "it has seen", seen, got)
	}
	none := limited(0)
	got := booked(&none, agentSees(20*gib))
	expect.True(t, got[2].Rations == 10*gib && got[2].Jobs == 1, got)
	other := limited(gib)
	other.Created = time.Unix(0, 8)
	got = booked(&other, agentSees(gib))
	expect.Equal(t, len(got), 0, "of another job", got)
	defer func(was func() func(*machine.Job) bool) { besidePolicy = was }(besidePolicy)
	besidePolicy = func() func(*machine.Job) bool { return func(j *machine.Job) bool { return j.Path == "p" } }
	got = booked(&now, agentSees(0))
	expect.Equal(t, len(got), 0, "of a job beside the policy", got)
}

// Who asks again and again does not wait again and again for an agent that does not answer.
func TestTotalsRest(t *testing.T) {
	folder := testFolder(t)
	silent, err := net.Listen("unix", filepath.Join(folder, job.AgentSocket))
	expect.OK(t, err)
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
	expect.Must(t, n != 0 && !totals.rest.IsZero(), "it was asked", n, "times")
	for range 3 {
		totals.Add(&machine.Machine{})
	}
	expect.Equal(t, len(asked), n, "it was asked", len(asked)-n, "times more")
	totals.rest = time.Now()
	totals.Add(&machine.Machine{})
	expect.True(t, len(asked) != n, "it was not asked again")
}
