package node

import (
	"time"

	"ration/internal/proc"
	"ration/machine"
)

const (
	maxCommand    = 4096                   // bytes of a command line
	commandWait   = 250 * time.Millisecond // for the command lines of all processes together
	minCPUSpan    = 200 * time.Millisecond // a share of a shorter time says little: the kernel counts in 10 ms
	keepCPUCounts = 10 * time.Second       // of a process that is not read any more
)

// HostProcess is a process to read with a HostMeter.
type HostProcess struct {
	machine.ProcessID
	UID int
}

// HostMeter reads how much processes use of the host's processors and memory. It reads two small files for each
// process, so the caller should name only those that it shows. The zero value is ready. It is not safe for concurrent
// use.
type HostMeter struct {
	cpu      map[machine.ProcessID]cpuCount
	commands map[machine.ProcessID][]string // results of the processes that were read last
	reading  map[int]chan readCommand       // by UID: results of a reader that has not ended yet
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
func (m *HostMeter) Read(processes []HostProcess) []*machine.HostUse {
	if m.cpu == nil {
		m.cpu, m.reading = map[machine.ProcessID]cpuCount{}, map[int]chan readCommand{}
	}
	m.readCommands(processes)
	now := time.Now()
	out := make([]*machine.HostUse, len(processes))
	for i, p := range processes {
		s, err := proc.ReadStat(p.PID)
		if err != nil || s.Start != p.Start { // it has ended, and another process may have its PID
			continue
		}
		count := m.cpu[p.ProcessID].next(s, now)
		m.cpu[p.ProcessID] = count
		out[i] = &machine.HostUse{Command: append([]string{}, m.commands[p.ProcessID]...), CPU: count.share, CPUTime: s.CPU.Seconds(), RSS: s.RSS}
	}
	for id, c := range m.cpu {
		if now.Sub(c.at) > keepCPUCounts {
			delete(m.cpu, id)
		}
	}
	return out
}

// readCommand is the command line of a process.
type readCommand struct {
	machine.ProcessID
	arguments []string
}

// readCommands reads the command lines of processes. A process can keep its reader waiting (proc.Command), so there is
// one reader for each user, and none of them is waited for longer than commandWait. A user's next processes are read
// after the reader has ended.
func (m *HostMeter) readCommands(processes []HostProcess) {
	byUser, commands := map[int][]machine.ProcessID{}, map[machine.ProcessID][]string{}
	for _, p := range processes {
		byUser[p.UID] = append(byUser[p.UID], p.ProcessID)
		if c, known := m.commands[p.ProcessID]; known { // until it is read again
			commands[p.ProcessID] = c
		}
	}
	m.commands = commands
	started := map[int]bool{}
	passed := make(chan struct{})
	close(passed)
	for uid, ids := range byUser {
		if m.collect(uid, passed); m.reading[uid] == nil {
			started[uid] = true
			results := make(chan readCommand, len(ids)) // the reader never waits for us
			m.reading[uid] = results
			go readCommandsOf(ids, results)
		}
	}
	deadline := make(chan struct{})
	timer := time.AfterFunc(commandWait, func() { close(deadline) })
	defer timer.Stop()
	for uid := range started {
		m.collect(uid, deadline)
	}
}

// collect takes the results of a user's reader until it ends, or until the deadline has passed and no more are there.
func (m *HostMeter) collect(uid int, deadline <-chan struct{}) {
	for results := m.reading[uid]; results != nil; {
		var r readCommand
		var more bool
		select {
		case r, more = <-results:
		default:
			select {
			case r, more = <-results:
			case <-deadline:
				return
			}
		}
		if !more {
			delete(m.reading, uid)
			return
		}
		m.commands[r.ProcessID] = r.arguments
	}
}

// readCommandsOf reads the command lines of processes that are still the same afterwards.
func readCommandsOf(ids []machine.ProcessID, results chan<- readCommand) {
	defer close(results)
	for _, id := range ids {
		arguments, err := proc.Command(id.PID, maxCommand)
		if start, startErr := proc.Started(id.PID); err == nil && startErr == nil && start == id.Start {
			results <- readCommand{id, arguments}
		}
	}
}

// AddHostUse sets Process.Host of all processes of jobs that can be seen from here.
func (m *HostMeter) AddHostUse(jobs []machine.Job) {
	var processes []HostProcess
	var of []*machine.Process
	for i := range jobs {
		for n := range jobs[i].Processes {
			p := &jobs[i].Processes[n]
			if p.Local.PID != 0 {
				processes, of = append(processes, HostProcess{p.Local, p.UID}), append(of, p)
			}
		}
	}
	for i, use := range m.Read(processes) {
		of[i].Host = use
	}
}
