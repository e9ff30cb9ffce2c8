package gputest

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"ration/internal/agent"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/machine"
)

// TestAgent compares what an agent shows with what the driver says to this process: the
// device, the processes of a job, and one that is in no job. Then a process of the job is
// killed, and what it held has to be gone.
func TestAgent(t *testing.T) {
	check(t, "picture", 8*gib, nil, func(t *trial) {
		const inJob, outside = 2 * gib, gib
		t.startAll(1, nil, t.file("ration"), "agent", "--listen", "none")
		client := agent.NewClient(filepath.Join(job.Folder(), job.AgentSocket))
		stranger := t.startHolding(outside)
		t.open(4 * inJob)
		members := []*program{t.startHolding(inJob), t.startHolding(inJob)}
		t.awaitShown(client, func(m *machine.Machine) error { return t.checkShown(m, len(members), stranger) })
		began := time.Now()
		members[0].kill()
		exit := time.Since(began) // the driver ends with it, which takes its time
		began = time.Now()
		t.awaitShown(client, func(m *machine.Machine) error {
			j, err := jobIn(m, t.job.Name)
			if err != nil {
				return err
			}
			var used uint64
			for _, d := range j.Devices {
				if d.Device == t.device {
					used = d.Used
				}
			}
			if j.Died != 1 || len(j.Processes) != 1 || used >= 2*inJob {
				return fmt.Errorf("after a kill the agent shows %d processes, %d that died, and %s used", len(j.Processes), j.Died, humanfmt.Bytes(used))
			}
			return nil
		})
		t.noteDifference()
		t.note("a death, which took the driver %d ms, was shown %d ms later", exit.Milliseconds(), time.Since(began).Milliseconds())
	})
}

// startHolding starts a program that has a context and so many bytes.
func (t *trial) startHolding(bytes uint64) *program {
	p := t.start(nil, t.native("workload")...)
	p.ask(0, "init")
	p.ask(0, "alloc %d", bytes)
	return p
}

// awaitShown asks the agent until what it shows is right.
func (t *trial) awaitShown(client *agent.Client, check func(*machine.Machine) error) {
	var wrong error
	if !eventually(func() bool {
		m, err := client.Machine()
		if err == nil {
			err = check(&m)
		}
		wrong = err
		return err == nil
	}) {
		t.Fatalf("%v", wrong)
	}
}

// checkShown compares what the agent shows with the driver's counts.
func (t *trial) checkShown(m *machine.Machine, members int, stranger *program) error {
	j, err := jobIn(m, t.job.Name)
	if err != nil {
		return err
	}
	pids := map[int]bool{stranger.PID(): true}
	for _, p := range j.Processes {
		if t.started(p.HostPID) {
			pids[p.HostPID] = true
		}
	}
	counts, err := t.driverCounts(pids)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(m.Devices, func(g machine.GPU) bool { return g.Device == t.device })
	if at < 0 {
		return fmt.Errorf("the agent does not show device %d", t.device)
	}
	g := &m.Devices[at]
	if total := uint64(t.driver.Devices[t.device].Total); g.Total != total || g.Rations != t.limit {
		return fmt.Errorf("the agent shows %s of memory and %s in rations, not %s and %s",
			humanfmt.Bytes(g.Total), humanfmt.Bytes(g.Rations), humanfmt.Bytes(total), humanfmt.Bytes(t.limit))
	}
	if t.has(real) && (g.Temperature == nil || g.Power == nil || g.Utilization == nil) {
		return fmt.Errorf("the agent shows no temperature, power or utilization: %+v", g)
	}
	seen := 0
	for i := range j.Processes {
		p := &j.Processes[i]
		for _, h := range p.Holdings {
			if h.Device != t.device || counts[p.HostPID] == 0 {
				continue
			}
			seen++
			a := account{pid: p.HostPID, ration: h.Total, driver: counts[p.HostPID]}
			if !a.withinTolerance() || !h.DriverNow || h.Driver != a.driver {
				return fmt.Errorf("the agent shows %s for pid %d, and %s by the driver, which says %s here",
					humanfmt.Bytes(h.Total), p.HostPID, humanfmt.Bytes(h.Driver), humanfmt.Bytes(a.driver))
			}
			t.difference(a.difference())
		}
	}
	if seen != members {
		return fmt.Errorf("the agent shows %d of %d processes of the job with what they hold", seen, members)
	}
	if !slices.ContainsFunc(m.Outside, func(o machine.Outside) bool {
		return o.PID == stranger.PID() && o.Device == t.device && o.Used == counts[o.PID]
	}) {
		return fmt.Errorf("the agent does not show pid %d, which is in no job, with %s: %+v", stranger.PID(), humanfmt.Bytes(counts[stranger.PID()]), m.Outside)
	}
	return nil
}

func jobIn(m *machine.Machine, name string) (*machine.Job, error) {
	for i := range m.Jobs {
		if m.Jobs[i].Name == name {
			return &m.Jobs[i], nil
		}
	}
	return nil, fmt.Errorf("the agent does not show job %s", name)
}
