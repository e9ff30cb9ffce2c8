// Package webtest has invented machines for tests of the page: of any size, and with hostile names
// that a tenant could choose.
package webtest

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"ration/internal/fleet"
	"ration/internal/node"
	"ration/machine"
)

// Hostile is a name that must appear in a browser only as text.
const Hostile = `"><script>document.title="harm"</script><img src=x onerror="document.title='harm'"><b>'&{{.}}</b>`

// GiB is a size.
const GiB = uint64(1 << 30)

// Machine returns a machine with devices, and jobs with processes on them, all at work.
func Machine(devices, jobs, processes int) *machine.Machine {
	m := &machine.Machine{Folder: "/run/ration", Devices: []machine.GPU{}, Jobs: []machine.Job{}, Outside: []machine.Outside{}, Findings: []machine.Finding{}}
	for d := range devices {
		busy, warm, power := 40+d, 50+d, 300.0
		m.Devices = append(m.Devices, machine.GPU{Device: d, UUID: uuid(d), Name: "NVIDIA H200", Total: 140 * GiB, Used: GiB, Utilization: &busy, Temperature: &warm, Power: &power})
	}
	for n := range jobs {
		m.Jobs = append(m.Jobs, Job(n, n%max(devices, 1), processes))
		d := &m.Jobs[n].Devices[0]
		if devices > 0 {
			g := &m.Devices[n%devices]
			g.Used, g.Rations, g.Jobs = g.Used+d.Used, g.Rations+d.Limit, g.Jobs+1
		}
	}
	return m
}

func uuid(device int) string { return fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", device) }

// begin is the start time of everything.
var begin = time.Now().UTC().Add(-10 * time.Minute)

// Job returns a job that holds some of a device.
func Job(n, device, processes int) machine.Job {
	j := machine.Job{Name: fmt.Sprintf("job-%d", n), Path: fmt.Sprintf("/run/ration/job-%d/region", n), Owner: "alice", UID: 1000, State: machine.Running,
		Command: []string{"python", "train.py", fmt.Sprint(n)}, Created: begin.Add(time.Duration(n)), Started: begin.Add(time.Duration(n)), Claims: uint64(processes)}
	var used uint64
	for p := range processes {
		held := (GiB/4 + uint64(n%7)<<20) / uint64(processes)
		used += held
		parent := 0
		if p > 0 {
			parent = 10000 + 100*n
		}
		j.Processes = append(j.Processes, machine.Process{Slot: p, Verified: true, PID: 10000 + 100*n + p, HostPID: 10000 + 100*n + p, UID: 1000, User: "alice", Name: "python",
			State: machine.Live, Parent: parent, Joined: j.Created, Holdings: []machine.Holding{{Total: held, Data: held, Driver: held, DriverNow: true}}})
	}
	j.Devices = []machine.Device{{Device: device, UUID: uuid(device), Limited: true, Limit: 8 * GiB, Used: used, Peak: used, Total: 140 * GiB}}
	return j
}

// Refuse adds a refused request to a job.
func Refuse(j *machine.Job, at time.Time, asked uint64) {
	d := &j.Devices[0]
	d.Refused++
	f := machine.Refusal{Time: at, Device: d.Device, PID: j.Processes[0].PID, Asked: asked, Held: d.Used, Limit: d.Limit, Own: j.Processes[0].Holdings[0].Total,
		Top: []machine.Holder{{PID: j.Processes[0].PID, Bytes: j.Processes[0].Holdings[0].Total}}}
	j.Refusals = append([]machine.Refusal{f}, j.Refusals...)
}

// Kill makes the last process of a job die.
func Kill(j *machine.Job, at time.Time) {
	p := j.Processes[len(j.Processes)-1]
	j.Processes = j.Processes[:len(j.Processes)-1]
	held := p.Holdings[0].Total
	j.Devices[0].Used -= held
	j.Died++
	d := machine.Death{Time: at, Slot: p.Slot, PID: p.PID, HostPID: p.HostPID, Name: p.Name, Joined: p.Joined, Noticed: "no process has its PID", Held: []machine.DeathHeld{{Bytes: held}}}
	j.Deaths = append([]machine.Death{d}, j.Deaths...)
}

// Source is a machine that a test changes.
type Source struct {
	mu     sync.Mutex
	m      *machine.Machine
	events []machine.Event
	past   node.History
	feed   *fleet.Feed
}

// NewSource returns a source with a machine and its history.
func NewSource(m *machine.Machine, past node.History) *Source {
	return &Source{m: m, events: machine.Events(&machine.Machine{}, m, time.Now()), past: past, feed: fleet.NewFeed()}
}

// Change changes a copy of the machine, and publishes it.
func (s *Source) Change(change func(m *machine.Machine)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.m.Clone()
	change(&m)
	s.events = append(slices.Clip(s.events), machine.Events(s.m, &m, time.Now())...)
	s.m = &m
	s.feed.Advance()
}

// Latest implements web.Source.
func (s *Source) Latest() (*machine.Machine, []machine.Event, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, next := s.feed.Latest()
	return s.m, s.events, next
}

// History implements web.Source.
func (s *Source) History() (node.History, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.past, nil
}

// Past returns an invented history of the last 15 minutes, in which the jobs started one after the
// other and grew.
func Past(m *machine.Machine, now time.Time) node.History {
	const interval, count = 5 * time.Second, 180
	h := node.History{Interval: interval}
	for i := range count {
		h.Times = append(h.Times, now.Add(time.Duration(i-count)*interval))
	}
	used := map[int][]uint64{}
	for i := range m.Devices {
		used[m.Devices[i].Device] = make([]uint64, count)
	}
	for n := range m.Jobs {
		j := &m.Jobs[n]
		for _, d := range j.Devices {
			series := node.JobHistory{Job: j.Name, Path: j.Path, Owner: j.Owner, UID: j.UID, Created: j.Created, Device: d.Device, Used: make([]*uint64, count)}
			for i := n * 25 % count; i < count; i++ {
				grown := min(uint64(i-n*25%count)/3+2, 20) // parts of 20, in steps
				if (i/(30+7*n))%3 == 2 && d.Used > 20*GiB {
					grown = grown * 4 / 5
				}
				v := d.Used * grown / 20
				series.Used[i] = &v
				if all := used[d.Device]; all != nil {
					all[i] += v
				}
			}
			h.Jobs = append(h.Jobs, series)
		}
	}
	for _, g := range m.Devices {
		d := node.DeviceHistory{Device: g.Device, Used: make([]*uint64, count)}
		for i, v := range used[g.Device] {
			v += GiB
			d.Used[i] = &v
		}
		h.Devices = append(h.Devices, d)
	}
	return h
}
