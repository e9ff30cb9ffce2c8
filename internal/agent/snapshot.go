package agent

import "ration/machine"

// snapshot is the machine as it was at a scan. Nothing changes it later.
//
// Each job has a serial. A job that is unchanged since the scan before keeps its serial, and any other gets
// a new one, higher than all before. A client that has the previous snapshot needs only the serials of all
// jobs, and the jobs with new ones.
type snapshot struct {
	machine.Machine
	serials []uint64 // of each job
	last    uint64   // the highest so far
}

// newSnapshot gives serials to the jobs of a machine.
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

// delta is what a client is sent: the machine as its user may see it, without the jobs that it has, and the
// events that it has not.
type delta struct {
	machine.Machine
	Serials []uint64        `json:"serials"` // of all jobs, in their order; those in Jobs are new
	Events  []machine.Event `json:"events,omitempty"`
}

// since returns the delta for a client that has the serials up to a number, 0 for none. It decides first
// what the client may see, so that no delta has anything that the whole has not.
func (s *snapshot) since(number uint64, who peer) delta {
	m, which := visible(&s.Machine, who.uid, who.all)
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

// jobsBySerial is what a client keeps of the previous delta.
type jobsBySerial map[uint64]machine.Job

// apply completes the jobs of a delta with those that the client has, and returns what to keep for the next
// one. ok is false for a delta that contradicts itself.
func (have jobsBySerial) apply(d *delta) (next jobsBySerial, ok bool) {
	next, all := make(jobsBySerial, len(d.Serials)), make([]machine.Job, len(d.Serials))
	fresh := d.Jobs
	for i, serial := range d.Serials {
		j, known := have[serial]
		if !known {
			if len(fresh) == 0 {
				return nil, false
			}
			j, fresh = fresh[0], fresh[1:]
		}
		next[serial], all[i] = j, j
	}
	d.Jobs = all
	return next, len(fresh) == 0
}
