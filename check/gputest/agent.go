package gputest

import (
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"ration/internal/agent"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/machine"
)

func agentChecks() []Check {
	return []Check{{Group: "agent", Name: "picture", Room: 8 * gib, run: (*Trial).agentPicture}}
}

// agentPicture compares what an agent shows with what the driver says to this process: the device, the
// processes of a job, and one that is in no job. Then a process of the job is killed, and what it held
// has to be gone.
func (t *Trial) agentPicture() error {
	const inJob, outside = 2 * gib, gib
	if err := t.startAll(1, nil, t.Bundle.file("ration"), "agent", "--listen", "none"); err != nil {
		return err
	}
	client := agent.NewClient(filepath.Join(job.Folder(), job.AgentSocket))
	stranger, err := t.startHolding(outside)
	if err != nil {
		return err
	}
	if err := t.open(4 * inJob); err != nil {
		return err
	}
	var members []*Program
	for range 2 {
		p, err := t.startHolding(inJob)
		if err != nil {
			return err
		}
		members = append(members, p)
	}
	if err := awaitPicture(client, func(m *machine.Machine) error {
		return t.checkPicture(m, len(members), stranger)
	}); err != nil {
		return err
	}
	began := time.Now()
	if err := members[0].Kill(); err != nil {
		return err
	}
	t.values["exit_ms"] = time.Since(began).Milliseconds() // the driver ends with it, which takes its time
	began = time.Now()
	if err := awaitPicture(client, func(m *machine.Machine) error {
		j, err := jobIn(m, t.job.Name)
		if err == nil && (j.Died != 1 || len(j.Processes) != 1 || t.usedIn(j) >= 2*inJob) {
			err = fmt.Errorf("after a kill the agent shows %d processes, %d that died, and %s used", len(j.Processes), j.Died, humanfmt.Bytes(t.usedIn(j)))
		}
		return err
	}); err != nil {
		return err
	}
	t.values["death_shown_ms"] = time.Since(began).Milliseconds()
	t.noteDifference()
	t.note("a death, which took the driver %d ms, was shown %d ms later", t.values["exit_ms"], t.values["death_shown_ms"])
	return nil
}

// startHolding starts a program that has a context and so many bytes.
func (t *Trial) startHolding(bytes uint64) (*Program, error) {
	p, err := t.start(nil, t.native("workload")...)
	if err != nil {
		return nil, err
	}
	for _, command := range []string{"init", fmt.Sprint("alloc ", bytes)} {
		if _, err := p.ask(0, "%s", command); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// awaitPicture asks the agent until what it shows is right, or returns why it is not.
func awaitPicture(client *agent.Client, check func(*machine.Machine) error) error {
	var wrong error
	_, err := eventually(func() (bool, error) {
		m, err := client.Machine()
		if err == nil {
			err = check(&m)
		}
		wrong = err
		return err == nil, nil
	})
	if err == nil {
		err = wrong
	}
	return err
}

// checkPicture compares a picture with the driver's counts.
func (t *Trial) checkPicture(m *machine.Machine, members int, stranger *Program) error {
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
	var largest int64
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
			if d := a.difference(); abs(d) > abs(largest) {
				largest = d
			}
		}
	}
	if seen != members {
		return fmt.Errorf("the agent shows %d of %d processes of the job with what they hold", seen, members)
	}
	for _, o := range m.Outside {
		if o.PID == stranger.PID() && o.Device == t.device && o.Used == counts[o.PID] {
			t.record(differencePrefix+"agent", largest)
			return nil
		}
	}
	return fmt.Errorf("the agent does not show pid %d, which is in no job, with %s: %+v", stranger.PID(), humanfmt.Bytes(counts[stranger.PID()]), m.Outside)
}

func jobIn(m *machine.Machine, name string) (*machine.Job, error) {
	for i := range m.Jobs {
		if m.Jobs[i].Name == name {
			return &m.Jobs[i], nil
		}
	}
	return nil, fmt.Errorf("the agent does not show job %s", name)
}

// usedIn returns what a job uses of the device under test.
func (t *Trial) usedIn(j *machine.Job) uint64 {
	for _, d := range j.Devices {
		if d.Device == t.device {
			return d.Used
		}
	}
	return 0
}
