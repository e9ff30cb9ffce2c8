package agent

import (
	"fmt"
	"net/url"

	"ration/machine"
)

// picture is the machine as it was at a look. Nothing in it is changed any more.
//
// Each job has a serial: a job that is as it was at the look before keeps it, and any other gets a
// new one, higher than all before. So the serials of all jobs, and the jobs whose serials are above
// the highest that one has seen, are all that one needs who has seen a picture before. The agent
// keeps nothing of those who ask, and who comes back late gets what was missed.
type picture struct {
	machine.Machine
	serials []uint64 // of each job
	last    uint64   // the highest so far
}

// newPicture gives serials to the jobs of a machine, which is the picture's from then on. Of a job
// that is as it was, it takes the one before: who compares two pictures finds them at one address.
func newPicture(m machine.Machine, before *picture) *picture {
	p := &picture{m, make([]uint64, len(m.Jobs)), before.last}
	was := make(map[machine.JobID]int, len(before.Jobs))
	for i := range before.Jobs {
		was[before.Jobs[i].ID()] = i
	}
	for i := range p.Jobs {
		j := &p.Jobs[i]
		if at, there := was[j.ID()]; there && j.Same(&before.Jobs[at]) {
			p.serials[i] = before.serials[at]
			continue
		}
		p.last++
		p.serials[i] = p.last
	}
	return p
}

// delta is what a user may see of a picture, for one who has seen an earlier one: all of it, but of
// the jobs only those that are new or others than they were.
type delta struct {
	machine.Machine
	Since   string   `json:"since"`   // what to ask with the next time
	Serials []uint64 `json:"serials"` // of all jobs, in their order; those in Jobs are the last ones given out
}

// since returns the delta for one who has seen the serials up to a number, 0 for none. What may be
// seen is decided first, and in one place: no delta has anything in it that the whole has not.
func (p *picture) since(number uint64, who peer) delta {
	m, which := visible(&p.Machine, who.uid, who.all)
	out := delta{Machine: *m, Serials: make([]uint64, len(which))}
	out.Jobs = []machine.Job{}
	for i, at := range which {
		out.Serials[i] = p.serials[at]
		if p.serials[at] > number {
			out.Jobs = append(out.Jobs, p.Jobs[at])
		}
	}
	return out
}

// Mirror is a copy of the machine as an agent sees it, and as this user may. The first time all of it
// is fetched, and then what has changed. It is not for use by several goroutines at once.
type Mirror struct {
	client *Client
	since  string
	jobs   map[uint64]machine.Job // by serial
}

// NewMirror returns one that has nothing yet.
func NewMirror(c *Client) *Mirror { return &Mirror{client: c} }

// Machine returns the machine. Nothing in it is changed any more; jobs that are as they were are
// those that it returned before.
func (m *Mirror) Machine() (*machine.Machine, error) {
	for {
		var d delta
		if err := m.client.get("/v1/machine?since="+url.QueryEscape(m.since), &d); err != nil {
			return nil, err
		}
		if d.Serials == nil {
			return &d.Machine, nil // an agent of an earlier version: it is the whole
		}
		first := m.since == ""
		if m.apply(&d) {
			return &d.Machine, nil
		}
		if m.since, m.jobs = "", nil; first {
			return nil, fmt.Errorf("reading the agent's answer: it has %d jobs, and says that there are %d", len(d.Jobs), len(d.Serials))
		}
	}
}

// apply completes the jobs of a delta with those that are as they were. It reports false where one is
// missing or too many: something was lost, or another agent answers, which has sent all jobs and whose
// serials mean others than are kept here. Then the whole is needed.
func (m *Mirror) apply(d *delta) bool {
	jobs, all := make(map[uint64]machine.Job, len(d.Serials)), make([]machine.Job, len(d.Serials))
	fresh := d.Jobs
	for i, serial := range d.Serials {
		j, known := m.jobs[serial]
		if !known {
			if len(fresh) == 0 {
				return false
			}
			j, fresh = fresh[0], fresh[1:]
		}
		jobs[serial], all[i] = j, j
	}
	if len(fresh) > 0 {
		return false
	}
	m.since, m.jobs, d.Jobs = d.Since, jobs, all
	return true
}
