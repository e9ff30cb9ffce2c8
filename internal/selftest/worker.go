package selftest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"ration/internal/abi"
	"ration/internal/procgroup"
	"ration/internal/region"
)

// Roles of workers.
const (
	Role       = "selftest"
	VictimRole = "selftest-victim"
)

// Gates, in the order they are opened.
const (
	gateElect  = iota // attach to a region that does not exist
	gateAttach        // leave, and attach again
	gateShare         // be busy within one's share
	gateGreedy        // be busy beyond it
	gateDuel          // want more than half of all there is
	gateSettle        // hold half one's share
	gateLeave
	gates
)

// How long a process is busy, and how often at least: on a crowded machine it
// may not run at all for a while.
const (
	busyFor   = 400 * time.Millisecond
	busyTimes = 100
)

// task is what a worker is told.
type task struct {
	Path  string
	Limit uint64
}

// attached is how a worker came by the region.
type attached struct {
	Role region.Role
	Took time.Duration
}

// worked is what a worker was granted and refused.
type worked struct {
	Requests int64 // charges asked for
	Refused  int64
	Untrue   int64 // refusals of what would have fit, by their own account
	Over     int64 // grants right after which more than the limit was granted
}

// Work is one of the racing processes.
func Work(p *procgroup.Post) error {
	var t task
	if err := p.Task(&t); err != nil {
		return err
	}
	p.Wait(gateElect)
	r, s, err := attach(p, t)
	if err != nil {
		return err
	}
	if err := errors.Join(s.Leave(), r.Close()); err != nil {
		return err
	}
	p.Wait(gateAttach)
	if r, s, err = attach(p, t); err != nil {
		return err
	}

	m := &member{region: r, slot: s, limit: t.Limit, rand: rand.New(rand.NewPCG(uint64(p.Index), 1))}
	for _, act := range []struct {
		gate int
		do   func() error
	}{
		{gateShare, func() error { return m.busy(share, 3) }},
		{gateGreedy, func() error { return m.busy(t.Limit, 64) }},
		{gateDuel, m.duel},
		{gateSettle, func() error { return m.ask(share / 2) }},
	} {
		p.Wait(act.gate)
		m.worked = worked{}
		if err := act.do(); err != nil {
			return err
		}
		if err := p.Report(m.worked); err != nil {
			return err
		}
	}
	p.Wait(gateLeave)
	return errors.Join(s.Leave(), r.Close())
}

func attach(p *procgroup.Post, t task) (*region.Region, *region.Slot, error) {
	var opt region.Options
	opt.Limits.Memory[0] = abi.MakeLimit(t.Limit, 0)
	from := time.Now()
	r, err := region.Open(t.Path, opt)
	if err != nil {
		return nil, nil, err
	}
	s, err := r.Claim(fmt.Sprintf("selftest %d", p.Index))
	if err != nil {
		return nil, nil, err
	}
	return r, s, p.Report(attached{r.Role(), time.Since(from)})
}

// member holds pieces of memory.
type member struct {
	worked
	region *region.Region
	slot   *region.Slot
	limit  uint64
	rand   *rand.Rand
	pieces []uint64
	held   uint64
}

// busy takes and returns pieces without pause, never holding more than most, and
// ends holding nothing. It returns some one time in so many, and when refused:
// the rarer the first, the closer all of them together come to the limit.
func (m *member) busy(most uint64, one int) error {
	until := time.Now().Add(busyFor)
	for n := 0; n < busyTimes || time.Now().Before(until); n++ {
		piece := uint64(1+m.rand.IntN(int(share/4/abi.Unit))) * abi.Unit
		if m.rand.IntN(8) == 0 {
			piece = min(most-m.held, share) // exactly what is left of a share
		}
		refused := m.Refused
		if m.held+piece <= most && m.rand.IntN(one) > 0 {
			if err := m.ask(piece); err != nil {
				return err
			}
		}
		if m.held+piece > most || m.Refused > refused || m.rand.IntN(one) == 0 {
			if err := m.giveBack(m.rand.IntN(len(m.pieces) + 1)); err != nil {
				return err
			}
		}
	}
	return m.giveBack(len(m.pieces))
}

// duel asks for a little more than half of the limit, again and again, and gives
// it back at once. Two who had it together would have passed the limit, so every
// request is at the edge: a ledger that checks first and adds afterwards, which
// may do well for a long time elsewhere, is found out here.
func (m *member) duel() error {
	until := time.Now().Add(busyFor)
	for n := 0; n < busyTimes || time.Now().Before(until); n++ {
		if err := m.ask(m.limit/2 + abi.Unit); err != nil {
			return err
		}
		if err := m.giveBack(len(m.pieces)); err != nil {
			return err
		}
	}
	return nil
}

// ask asks for a piece, and looks hard at a refusal.
func (m *member) ask(piece uint64) error {
	if piece == 0 {
		return nil
	}
	m.Requests++
	err := m.slot.Charge(0, abi.Data, piece)
	var refused *region.RefusedError
	switch {
	case err == nil:
		if m.region.Used(0) > m.limit {
			m.Over++
		}
		m.pieces, m.held = append(m.pieces, piece), m.held+piece
	case errors.As(err, &refused):
		m.Refused++
		if refused.Held+piece <= refused.Limit {
			m.Untrue++
		}
	default:
		return err
	}
	return nil
}

// giveBack returns the n newest pieces.
func (m *member) giveBack(n int) error {
	for range n {
		last := len(m.pieces) - 1
		if err := m.slot.Return(0, abi.Data, m.pieces[last]); err != nil {
			return err
		}
		m.held -= m.pieces[last]
		m.pieces = m.pieces[:last]
	}
	return nil
}

// Fall is the neighbour that is killed: it takes all it can, says so, and goes
// on being busy until it dies.
func Fall(p *procgroup.Post) error {
	var t task
	if err := p.Task(&t); err != nil {
		return err
	}
	r, err := region.Open(t.Path, region.Options{NoCreate: true})
	if err != nil {
		return err
	}
	s, err := r.Claim("selftest victim")
	if err != nil {
		return err
	}
	if err := s.Charge(0, abi.Data, t.Limit); err != nil {
		return err
	}
	if err := p.Report(attached{Role: r.Role()}); err != nil {
		return err
	}
	for {
		if err := errors.Join(s.Return(0, abi.Data, abi.Unit), s.Charge(0, abi.Data, abi.Unit)); err != nil {
			return err
		}
	}
}
