package gputest

import (
	"cmp"
	"errors"
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
		t.inside(func(t *trial) {
			t.open(4 * inJob)
			member := t.startHolding(inJob)
			t.startHolding(inJob)
			t.awaitShown(client, func(m *machine.Machine, j *machine.Job) error { return t.checkShown(m, j, stranger.PID()) })
			began := time.Now()
			member.kill()
			exit := time.Since(began) // the driver ends with it, which takes its time
			began = time.Now()
			t.awaitShown(client, func(_ *machine.Machine, j *machine.Job) error {
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
	})
}

// startHolding starts a program that has a context and so many bytes.
func (t *trial) startHolding(bytes uint64) *program {
	p := t.start(nil, t.native("workload")...)
	p.ask(0, "init")
	p.ask(0, "alloc %d", bytes)
	return p
}

// awaitShown asks the agent until what it shows of the machine and of the job is right.
func (t *trial) awaitShown(client *agent.Client, check func(*machine.Machine, *machine.Job) error) {
	var wrong error
	if !eventually(func() bool {
		m, err := client.Machine()
		wrong = cmp.Or(err, errors.New("the agent does not show the job"))
		for i := range m.Jobs {
			if m.Jobs[i].Name == t.job.Name {
				wrong = check(&m, &m.Jobs[i])
			}
		}
		return wrong == nil
	}) {
		t.Fatalf("%v", wrong)
	}
}

// checkShown compares what the agent shows with the counts that are read here: of the
// device, of the job, and of a process that is in no job.
func (t *trial) checkShown(m *machine.Machine, j *machine.Job, stranger int) error {
	const device, process, outside = "%d bytes, %d of them in rations; ", "pid %d: %d, and %d by the driver; ", "pid %d in no job: %d; "
	want := fmt.Sprintf(device, t.driver.Devices[t.device].Total, t.limit)
	for _, a := range t.compare("shown") {
		want += fmt.Sprintf(process, a.pid, a.ration, a.driver)
	}
	counts, err := t.driverCounts(map[int]bool{stranger: true})
	t.must(err)
	want += fmt.Sprintf(outside, stranger, counts[stranger])
	got := ""
	for _, g := range m.Devices {
		if g.Device == t.device {
			got += fmt.Sprintf(device, g.Total, g.Rations)
			if t.has(real) && (g.Temperature == nil || g.Power == nil || g.Utilization == nil) {
				return fmt.Errorf("the agent shows no temperature, power or utilization: %+v", g)
			}
		}
	}
	slices.SortFunc(j.Processes, func(a, b machine.Process) int { return a.HostPID - b.HostPID })
	for i := range j.Processes {
		for _, h := range j.Processes[i].Holdings {
			if h.Device == t.device && h.DriverNow {
				got += fmt.Sprintf(process, j.Processes[i].HostPID, h.Total, h.Driver)
			}
		}
	}
	for _, o := range m.Outside {
		if o.Device == t.device && o.PID == stranger {
			got += fmt.Sprintf(outside, o.PID, o.Used)
		}
	}
	if got != want {
		return fmt.Errorf("the agent shows %s, not %s", got, want)
	}
	return nil
}
