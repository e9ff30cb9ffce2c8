package main

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"ration/check/observer"
	"ration/internal/abi"
	"ration/internal/region"
)

// work runs in the background, in threads of its own, until it is stopped.
type work struct {
	ended   atomic.Bool // tells the threads to end
	threads sync.WaitGroup
	mu      sync.Mutex
	err     error // of all threads; guarded by mu
}

// endWork ends the background work and returns its error.
func (w *worker) endWork() error {
	if w.work == nil {
		return nil
	}
	w.work.ended.Store(true)
	w.work.threads.Wait()
	err := w.work.err
	w.work = nil
	return err
}

// begin runs step in a thread until the work ends or step fails.
func (w *work) begin(step func() error) { w.beginAndEnd(step, func() error { return nil }) }

// beginAndEnd is begin, with a last step when the others have ended.
func (w *work) beginAndEnd(step, last func() error) {
	w.threads.Go(func() {
		var err error
		for err == nil && !w.ended.Load() {
			err = step()
		}
		err = errors.Join(err, last())
		w.mu.Lock()
		defer w.mu.Unlock()
		w.err = errors.Join(w.err, err)
	})
}

// start starts background work.
func (w *worker) start(name string, p *parser) error {
	threads := 1
	if name == "threads" {
		threads, name = p.number(), p.word()
	}
	work := &work{}
	switch name {
	case "churn":
		devices, seed, most := p.devices(), p.number(), p.number()
		if p.err != nil || most < 1 || len(w.slots) == 0 {
			return errUsage
		}
		for n := range threads {
			c := &churn{
				slot: w.slots[len(w.slots)-1], tally: &w.tally, devices: devices, most: most,
				random: rand.New(rand.NewPCG(uint64(seed), uint64(n))),
			}
			work.beginAndEnd(c.step, c.end)
		}
	case "reaper":
		work.begin(func() error {
			w.tally.ops.Add(1)
			return w.tally.timed(func() error { _, err := w.r.Reap(); return err })
		})
	case "observe":
		devices, ceiling := p.devices(), p.number()
		if p.err != nil {
			return errUsage
		}
		checker := observer.New(w.r)
		work.begin(func() (err error) {
			for _, d := range devices {
				w.tally.ops.Add(1)
				err = errors.Join(err, checker.Check(d, uint64(ceiling)))
			}
			return err
		})
	default:
		return errUsage
	}
	w.work = work
	return nil
}

// churn charges and returns pieces at random.
type churn struct {
	slot    *region.Slot
	tally   *tally
	devices []int
	most    int // bytes of a piece
	random  *rand.Rand
	pieces  []piece
}

type piece struct {
	device int
	kind   abi.Kind
	bytes  uint64
}

// step charges a piece, or returns one.
func (c *churn) step() error {
	c.tally.ops.Add(1)
	if len(c.pieces) > 0 && c.random.IntN(64) < len(c.pieces) {
		return c.drop(c.random.IntN(len(c.pieces)))
	}
	p := piece{
		device: c.devices[c.random.IntN(len(c.devices))],
		kind:   abi.Kind(c.random.IntN(int(abi.Kinds))),
		bytes:  uint64(1 + c.random.IntN(c.most)),
	}
	err := c.tally.timed(func() error { return c.slot.Charge(p.device, p.kind, p.bytes) })
	switch {
	case err == nil:
		c.pieces = append(c.pieces, p)
	case errors.Is(err, region.ErrRefused):
		c.tally.refused.Add(1)
		if len(c.pieces) > 0 {
			return c.drop(c.random.IntN(len(c.pieces)))
		}
	default:
		return err
	}
	return nil
}

// drop returns piece i.
func (c *churn) drop(i int) error {
	p := c.pieces[i]
	c.pieces = slices.Delete(c.pieces, i, i+1)
	return c.tally.timed(func() error { return c.slot.Return(p.device, p.kind, p.bytes) })
}

// end returns all pieces.
func (c *churn) end() error {
	for len(c.pieces) > 0 {
		if err := c.drop(len(c.pieces) - 1); err != nil {
			return err
		}
	}
	return nil
}
