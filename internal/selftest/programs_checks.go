package selftest

import (
	"fmt"
	"sync"
	"time"

	"ration/internal/abi"
	"ration/internal/humanfmt"
	"ration/internal/limit"
	"ration/internal/observer"
	"ration/internal/workload"
)

// driver is a program outside the job. What it is told of the device, no library
// has had a hand in.
type driver struct {
	readings, passed int64
	most             uint64

	program  *workload.Program
	asking   sync.Mutex
	limit    uint64
	done     chan struct{}
	once     sync.Once
	finished sync.WaitGroup
}

// driverRest is the pause between two questions: each costs the time of two
// processes, which the others could use.
const driverRest = 200 * time.Microsecond

func askDriver(m *workload.Machine, limit uint64) (*driver, error) {
	w, err := m.Start(false)
	if err != nil {
		return nil, err
	}
	if _, err := w.Do(phaseWithin, "init"); err != nil {
		w.Close()
		return nil, err
	}
	return &driver{program: w, limit: limit, done: make(chan struct{})}, nil
}

// watch asks again and again, until rest.
func (d *driver) watch() {
	d.finished.Go(func() {
		for {
			select {
			case <-d.done:
				return
			case <-time.After(driverRest):
			}
			used, err := d.used()
			if err != nil {
				return // whoever asks next is told
			}
			d.readings++
			d.most = max(d.most, used)
			if used > d.limit {
				d.passed++
			}
		}
	})
}

func (d *driver) rest() {
	d.once.Do(func() { close(d.done) })
	d.finished.Wait()
}

func (d *driver) close() {
	d.rest()
	d.program.Close()
}

func (d *driver) used() (uint64, error) {
	d.asking.Lock()
	defer d.asking.Unlock()
	return d.program.Used(phaseWithin)
}

// limitHeld takes three witnesses: the observer, the highest figure that the region
// itself kept, and the driver, which knows nothing of a limit.
func (p *programs) limitHeld(o *observer.Observer) {
	d, most := p.driver, max(o.Most, p.view.Peak(0), p.driver.most)
	p.add("limit held", o.Passed == 0 && d.passed == 0 && most <= p.Limit && o.Readings > 0 && d.readings > 0, map[string]int64{
		"readings": o.Readings, "passed": o.Passed, "driver_readings": d.readings, "driver_passed": d.passed,
		"most_bytes": int64(most), "limit_bytes": int64(p.Limit),
	}, "passed in %d of %s readings and %d of %s by the driver; the most was %v of %v", o.Passed, humanfmt.Count(o.Readings),
		d.passed, humanfmt.Count(d.readings), limit.Size(most), limit.Size(p.Limit))
}

// ownView asks each program how large its device is.
func (p *programs) ownView() error {
	answers, err := p.tell(1, always("info"))
	if err != nil {
		return err
	}
	var right int64
	for _, a := range answers {
		if len(a.Figures) == 3 && uint64(a.Figures[1]) == p.Limit {
			right++
		}
	}
	p.add("own view", right == int64(p.Processes), map[string]int64{"right": right},
		"%d of %d see a device of %v", right, p.Processes, limit.Size(p.Limit))
	return nil
}

// killNeighbour has one more program take all that is free, kills it while it is
// busy, and has another ask for the same bytes at once.
func (p *programs) killNeighbour() (c Check, err error) {
	p.said("killing a neighbour")
	victim, err := p.neighbour()
	if err != nil {
		return c, err
	}
	defer victim.Close()
	survivor, err := p.neighbour()
	if err != nil {
		return c, err
	}
	defer survivor.Close()
	free := p.Limit - p.view.Used(0)
	got, err := victim.Do(phaseWithin, "alloc %d", free-abi.Unit)
	if err != nil {
		return c, err
	}
	if got.OutOfMemory {
		return c, fmt.Errorf("a neighbour was refused %d bytes with %d free", free-abi.Unit, free)
	}
	if err := victim.Tell("duel %d", abi.Unit); err != nil {
		return c, err
	}
	killed := time.Now()
	if err := victim.Die(); err != nil {
		return c, err
	}
	dead := time.Now()
	bytes := free + context // all that it had
	got, err = survivor.Do(phaseWithin, "alloc %d", bytes)
	granted := time.Now()
	if err != nil {
		return c, err
	}
	c = Check{Name: "killed neighbour", Verdict: Pass, Values: map[string]int64{
		"bytes": int64(bytes), "from_kill_ns": int64(granted.Sub(killed)), "from_death_ns": int64(granted.Sub(dead)),
	}}
	c.Figure = fmt.Sprintf("all its %v went to a survivor %s after its death", limit.Size(bytes), humanfmt.Duration(granted.Sub(dead)))
	if got.OutOfMemory {
		c.Verdict, c.Figure = Fail, fmt.Sprintf("its %v did not come back", limit.Size(bytes))
	}
	if _, err := survivor.Do(phaseWithin, "quit"); err != nil {
		return c, err
	}
	return c, survivor.Ended(phaseWithin)
}

// neighbour is one more program with a context.
func (p *programs) neighbour() (*workload.Program, error) {
	w, err := p.machine.Start(true)
	if err != nil {
		return nil, err
	}
	if _, err := w.Do(phaseWithin, "init"); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// tripleSum is the three ways to say what of the device is in use.
type tripleSum struct {
	sum
	driver uint64
}

func (p *programs) sums() (s tripleSum, err error) {
	if s.sum, err = sums(p.view); err != nil {
		return s, err
	}
	s.driver, err = p.driver.used()
	return s, err
}

// books compares, while all programs held something and after they left.
func (p *programs) books(held tripleSum) error {
	end, err := p.sums()
	if err != nil {
		return err
	}
	processes, err := p.view.Processes()
	if err != nil {
		return err
	}
	all := uint64(p.Processes) * (settled + context)
	ok := held == tripleSum{sum{all, all}, all} && end == tripleSum{} && len(processes) == 0
	p.add("books agree", ok, map[string]int64{
		"held_word_bytes": int64(held.word), "held_sum_bytes": int64(held.holdings), "held_driver_bytes": int64(held.driver),
		"end_word_bytes": int64(end.word), "end_sum_bytes": int64(end.holdings), "end_driver_bytes": int64(end.driver),
		"end_slots": int64(len(processes)),
	}, "%v granted, %v held, %v in the driver; at the end %v, %v, %v and %d slots", limit.Size(held.word), limit.Size(held.holdings),
		limit.Size(held.driver), limit.Size(end.word), limit.Size(end.holdings), limit.Size(end.driver), len(processes))
	return nil
}
