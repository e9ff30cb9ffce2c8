package demo

import (
	"errors"
	"math/rand/v2"
	"time"

	"ration/internal/abi"
	"ration/internal/crew"
	"ration/internal/region"
)

// Role of the workers.
const Role = "demo"

// Gates, in the order they are opened.
const (
	gateBegin = iota
	gateQuiet // hold what you have, and say what you did
	gateLeave
	gates
)

// pace is how often a worker takes or returns something: slow enough to watch.
const pace = 4 * time.Millisecond

// part is what a worker plays: either it keeps holding something between Low and
// High, or it asks for something once.
type part struct {
	Path      string
	Name      string
	Limit     uint64
	Low, High uint64
	Ask       uint64
}

// attached is how a worker came by its slot.
type attached struct {
	Slot int
	Took time.Duration
}

// worked is what a worker did.
type worked struct {
	Requests int64
	Refused  int64
	Slowest  time.Duration // answer to a request
}

// answer is what became of asking once.
type answer struct {
	Refused bool
	Held    uint64 // by all, when refused
	Top     []region.Holder
	Took    time.Duration
}

// Work plays a part.
func Work(p *crew.Post) error {
	var t part
	if err := p.Task(&t); err != nil {
		return err
	}
	if t.Ask == 0 {
		p.Wait(gateBegin) // all at once
	}
	var opt region.Options
	opt.Limits.Memory[0] = abi.MakeLimit(t.Limit, 0)
	from := time.Now()
	r, err := region.Open(t.Path, opt)
	if err != nil {
		return err
	}
	s, err := r.Claim(t.Name)
	took := time.Since(from)
	if err != nil {
		return err
	}
	a := &actor{slot: s}
	if err := a.take(t.Low); err != nil {
		return err
	}
	if err := p.Report(attached{s.Index(), took}); err != nil {
		return err
	}
	if t.Ask > 0 {
		p.Wait(gateBegin)
		got, err := a.ask(t.Ask)
		if err := errors.Join(err, p.Report(got)); err != nil {
			return err
		}
	} else {
		err := a.wander(t, func() bool { return p.Passed(gateQuiet) })
		if err := errors.Join(err, p.Report(a.worked)); err != nil {
			return err
		}
	}
	p.Wait(gateLeave)
	return errors.Join(s.Leave(), r.Close())
}

// actor holds memory.
type actor struct {
	worked
	slot *region.Slot
	held uint64
}

// wander takes and returns pieces between low and high, a while up and a while
// down, until it is time to be quiet.
func (a *actor) wander(t part, quiet func() bool) error {
	room := (t.High - t.Low) / abi.Unit
	goal := t.Low
	for !quiet() {
		piece := uint64(rand.Int64N(int64(room/16)+1)+1) * abi.Unit
		var err error
		switch {
		case a.held+piece <= goal:
			err = a.take(piece)
		case a.held >= goal+piece && a.held >= t.Low+piece:
			err = a.giveBack(piece)
		default:
			goal = t.Low + rand.Uint64N(room+1)*abi.Unit
		}
		if err != nil {
			return err
		}
		time.Sleep(pace/2 + rand.N(pace))
	}
	return nil
}

// take takes a piece. A refusal is counted, and no reason to end.
func (a *actor) take(piece uint64) error {
	from := time.Now()
	err := a.slot.Charge(0, abi.Data, piece)
	a.Requests++
	a.Slowest = max(a.Slowest, time.Since(from))
	switch {
	case err == nil:
		a.held += piece
	case errors.Is(err, region.ErrRefused):
		a.Refused++
		return nil
	}
	return err
}

func (a *actor) giveBack(piece uint64) error {
	from := time.Now()
	err := a.slot.Return(0, abi.Data, piece)
	a.held -= piece
	a.Slowest = max(a.Slowest, time.Since(from))
	return err
}

// ask asks once.
func (a *actor) ask(bytes uint64) (answer, error) {
	from := time.Now()
	err := a.slot.Charge(0, abi.Data, bytes)
	out := answer{Took: time.Since(from)}
	var refused *region.RefusedError
	if errors.As(err, &refused) {
		out.Refused, out.Held, out.Top = true, refused.Held, refused.Top
		return out, nil
	}
	return out, err
}
