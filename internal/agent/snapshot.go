package agent

import "ration/machine"

// snapshot is the machine as of one scan. It is never changed.
//
// Each job has a serial number. A job that has not changed since the last scan keeps its serial; a
// changed job gets a new serial, higher than all before. A client that has the previous snapshot
// needs only the serials of all jobs, and the jobs with new serials.
type snapshot struct {
	machine.Machine
	serials []uint64 // one for each job
	last    uint64   // the highest serial so far
}

// newSnapshot assigns serials to the jobs of a machine.
func newSnapshot(m machine.Machine, before *snapshot) *snapshot {
	s := &snapshot{m, make([]uint64, len(m.Jobs)), before.last}
	was := make(map[machine.JobID]int, len(before.Jobs))
	for i := range before.Jobs {
		was[before.Jobs[i].ID()] = i
	}
	for i := range s.Jobs {
		if at, there := was[s.Jobs[i].ID()]; there && s.Jobs[i].Same(&before.Jobs[at]) {
			s.serials[i] = before.serials[at]
			continue
		}
		s.last++
		s.serials[i] = s.last
	}
	return s
}

// delta is the message to a client: the part of the machine that its user may see, without the jobs
// that the client has, and the new events.
type delta struct {
	machine.Machine
	Serials []uint64        `json:"serials"` // of all jobs, in order; Jobs has those with new serials
	Events  []machine.Event `json:"events,omitempty"`
}

// since returns the delta for a client that has all serials up to number (0 for none). It first
// removes everything the client may not see, so a delta never has more than a full snapshot.
func (s *snapshot) since(number uint64, client peer) delta {
	m, which := visible(&s.Machine, client.uid, client.all)
	out := delta{Machine: *m, Serials: make([]uint64, len(which))}
	out.Jobs = []machine.Job{}
	for i, at := range which {
		out.Serials[i] = s.serials[at]
		if s.serials[at] > number {
			out.Jobs = append(out.Jobs, s.Jobs[at])
		}
	}
	return out
}
