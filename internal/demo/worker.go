package demo

import (
	"errors"
	"math/rand/v2"
	"time"

	"ration/internal/abi"
	"ration/internal/procgroup"
	"ration/internal/region"
)

// Role of the workers.
const Role = "demo"

// Gates, in the order they are opened.
const (
	gateAttach = iota
	gateAct    // wander, or ask
	gateQuiet
	gateLeave
	gates
)

// pace is how often a worker takes or returns something: slow enough to watch.
const pace = 4 * time.Millisecond

// Work plays a part without the library: what that would do for a program, this
// one does itself.
func Work(p *procgroup.Post) error {
	var t part
	if err := p.Task(&t); err != nil {
		return err
	}
	p.Wait(gateAttach)
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
	a := &worker{slot: s}
	if err := errors.Join(a.take(t.Low), p.Report(took)); err != nil {
		return err
	}
	p.Wait(gateAct)
	if t.Ask > 0 {
		if err := errors.Join(a.take(t.Ask), p.Report(answer{a.Refused > 0, a.Slowest})); err != nil {
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

// worker holds memory.
type worker struct {
	worked
	slot *region.Slot
	held uint64
}

// wander takes and returns pieces between low and high, a while up and a while
// down, until it is time to be quiet.
func (a *worker) wander(t part, quiet func() bool) error {
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
func (a *worker) take(piece uint64) error {
	if piece == 0 {
		return nil
	}
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

func (a *worker) giveBack(piece uint64) error {
	from := time.Now()
	err := a.slot.Return(0, abi.Data, piece)
	a.held -= piece
	a.Slowest = max(a.Slowest, time.Since(from))
	return err
}
