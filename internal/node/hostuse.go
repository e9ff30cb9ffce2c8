package node

import (
	"time"

	"ration/internal/proc"
	"ration/machine"
)

const (
	maxCommand    = 4096                   // bytes of a command line
	minCPUSpan    = 200 * time.Millisecond // a share of a shorter time says little: the kernel counts in 10 ms
	keepCPUCounts = 10 * time.Second       // of a process that is not read any more
)

// HostMeter reads how much processes use of the host's processors and memory. It reads two small files for each
// process, so the caller should name only those that it shows. The zero value is ready. It is not safe for concurrent
// use.
type HostMeter struct {
	cpu map[machine.ProcessID]cpuCount
}

// cpuCount is the time on processors that a process had had at one time, and its share of the time before.
type cpuCount struct {
	at    time.Time
	total time.Duration
	share machine.Time
}

// next returns the count at a later time, with the share of the time in between. Without an earlier count it is the
// share since the process started.
func (c cpuCount) next(s proc.Stat, now time.Time) cpuCount {
	had, span := s.CPU-c.total, now.Sub(c.at)
	switch {
	case c.at.IsZero():
		had, span = s.CPU, s.Age()
	case span < minCPUSpan:
		return c
	}
	out := cpuCount{at: now, total: s.CPU}
	if span > 0 {
		out.share = machine.Time{Percent: 100 * max(0, had.Seconds()) / span.Seconds(), Seconds: span.Seconds()}
	}
	return out
}

// Read returns the use of each process, in the order of the argument; nil for a process that has ended or cannot be
// read.
func (m *HostMeter) Read(processes []machine.ProcessID) []*machine.HostUse {
	if m.cpu == nil {
		m.cpu = map[machine.ProcessID]cpuCount{}
	}
	now := time.Now()
	out := make([]*machine.HostUse, len(processes))
	for i, p := range processes {
		command := proc.Command(p.PID, maxCommand)
		s, err := proc.ReadStat(p.PID)        // after the command, which is then this process's
		if err != nil || s.Start != p.Start { // it has ended, and another process may have its PID
			continue
		}
		count := m.cpu[p].next(s, time.Now())
		m.cpu[p] = count
		out[i] = &machine.HostUse{Command: append([]string{}, command...), CPU: count.share, CPUTime: s.CPU.Seconds(), RSS: s.RSS}
	}
	for id, c := range m.cpu {
		if now.Sub(c.at) > keepCPUCounts {
			delete(m.cpu, id)
		}
	}
	return out
}

// AddHostUse sets Process.Host of all processes of jobs that can be seen from here.
func (m *HostMeter) AddHostUse(jobs []machine.Job) {
	var processes []machine.ProcessID
	var of []*machine.Process
	for i := range jobs {
		for n := range jobs[i].Processes {
			p := &jobs[i].Processes[n]
			if p.Local.PID != 0 {
				processes, of = append(processes, p.Local), append(of, p)
			}
		}
	}
	for i, use := range m.Read(processes) {
		of[i].Host = use
	}
}
