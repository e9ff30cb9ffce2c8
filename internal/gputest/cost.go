package gputest

import (
	"fmt"
	"time"
)

// trios is how many times the programs of a measure are started anew: two processes
// of the same program differ for as long as they live, by where their memory came to
// lie.
const trios = 4

// fresh measures with several trios, one after the other, each on one processor: they
// take turns anyway. ask returns a series for each figure.
func (s *Stage) fresh(limit uint64, ask func(t trio) ([]series, error)) (all []series, err error) {
	for range s.rounds(trios) {
		inner := s.stage(s.quick)
		some, err := inner.freshly(limit, ask)
		inner.close()
		if err != nil {
			return nil, fmt.Errorf("%w %s", err, inner.said())
		}
		if all == nil {
			all = make([]series, len(some))
		}
		for i := range some {
			all[i].add(some[i])
		}
	}
	return all, nil
}

func (s *Stage) freshly(limit uint64, ask func(t trio) ([]series, error)) ([]series, error) {
	cpu, err := processor()
	if err != nil {
		return nil, err
	}
	t, err := s.startTrio(limit, fmt.Sprintf("pin %d", cpu), s.native("timing")...)
	if err != nil {
		return nil, err
	}
	if err := t.tellAll("init"); err != nil {
		return nil, err
	}
	return ask(t)
}

// allocCost is what an allocation and a free take, beside few and many others.
func (s *Stage) allocCost() (rows []Row, err error) {
	const piece = 1 << 20
	lives := []int{0, 1000, 10_000}
	all, err := s.fresh(12*gib, func(t trio) (out []series, err error) {
		for _, live := range lives {
			// As large as what is measured, so that no block is left with room in it.
			if err := t.tellAll(fmt.Sprintf("live %d %d", live, piece)); err != nil {
				return nil, err
			}
			both, err := t.warm(s.rounds(40), 2, fmt.Sprintf("alloc 50 %d", piece))
			if err != nil {
				return nil, err
			}
			out = append(out, both...)
		}
		// From a block that is there, which the driver does not ask the kernel for.
		if err := t.tellAll(fmt.Sprintf("live 1 %d", 64<<10)); err != nil {
			return nil, err
		}
		for _, line := range []string{fmt.Sprintf("alloc 200 %d", 64<<10), fmt.Sprintf("async 200 %d", piece)} {
			both, err := t.warm(s.rounds(40), 2, line)
			if err != nil {
				return nil, err
			}
			out = append(out, both...)
		}
		info, err := t.warm(s.rounds(20), 1, "info 200")
		return append(out, info...), err
	})
	if err != nil {
		return nil, err
	}
	for i, live := range lives {
		for j, call := range []string{"cuMemAlloc", "cuMemFree"} {
			rows = append(rows, all[2*i+j].row(fmt.Sprintf("%s, %d live", call, live), nanoseconds).within(1, 500))
		}
	}
	for j, call := range []string{"cuMemAlloc, from an open block", "cuMemFree, into an open block"} {
		rows = append(rows, all[6+j].row(call, nanoseconds).within(1, 500))
	}
	for j, call := range []string{"cuMemAllocAsync", "cuMemFreeAsync", "cuMemGetInfo"} {
		rows = append(rows, all[8+j].row(call, nanoseconds))
	}
	return rows, nil
}

// warm is compare after a round that does not count: it finds caches and clocks as
// something else left them.
func (t trio) warm(rounds, figures int, line string) ([]series, error) {
	if _, err := t.compare(1, figures, line); err != nil {
		return nil, err
	}
	return t.compare(rounds, figures, line)
}

// launchCost is what a kernel launch takes.
func (s *Stage) launchCost() ([]Row, error) {
	launch, err := s.fresh(2*gib, func(t trio) ([]series, error) { return t.warm(s.rounds(90), 1, "launch 400") })
	if err != nil {
		return nil, err
	}
	return []Row{launch[0].row("kernel launch", nanoseconds).within(1, 0)}, nil
}

// startCost is what cuInit and a context take, with so many processes at once: until
// the last of them has both.
func (s *Stage) startCost() (rows []Row, err error) {
	for _, crowd := range []struct{ n, rounds int }{{1, 15}, {8, 5}, {18, 3}, {32, 3}} {
		if s.quick && crowd.n > 8 {
			break
		}
		var ready series
		for round := range s.rounds(crowd.rounds) {
			for _, i := range turns(round) {
				took, err := s.crowd(crowd.n, i == 2)
				if err != nil {
					return rows, err
				}
				ready[i] = append(ready[i], took)
			}
		}
		name := fmt.Sprintf("cuInit + context, %d at once", crowd.n)
		if crowd.n == 1 {
			name = "cuInit + context"
		}
		rows = append(rows, ready.row(name, nanoseconds).within(2, 0))
	}
	return rows, nil
}

// crowd starts n programs and has them start to use the device at one instant. It
// returns the nanoseconds until the last was ready.
func (s *Stage) crowd(n int, rationed bool) (float64, error) {
	inner := s.stage(s.quick)
	if rationed {
		if err := inner.open(uint64(n) * 700 * mib); err != nil {
			return 0, err
		}
	}
	defer inner.close()
	took, err := inner.crowded(n)
	if err != nil {
		err = fmt.Errorf("%w %s", err, inner.said())
	}
	return took, err
}

func (s *Stage) crowded(n int) (float64, error) {
	if err := s.startAll(n, nil, s.native("timing")...); err != nil {
		return 0, err
	}
	// All must have started, and wait: a question that needs no device.
	if err := s.each(func(p *Program) error { _, err := p.ask(1, "memory"); return err }); err != nil {
		return 0, err
	}
	at, err := instant(50 * time.Millisecond)
	if err != nil {
		return 0, err
	}
	if err := s.each(func(p *Program) error { return p.tell(fmt.Sprintf("init %d", at)) }); err != nil {
		return 0, err
	}
	var last float64
	err = s.each(func(p *Program) error {
		f, err := p.figures()
		if err == nil && len(f) < 3 {
			err = fmt.Errorf("pid %d answered with %d figures, not 3", p.PID(), len(f))
		}
		if err == nil {
			last = max(last, f[2]-float64(at))
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	err = s.each(func(p *Program) error { _, err := p.ask(0, "quit"); return err })
	return last, err
}

// trainCost is what a step of training takes, and one that returns everything to the
// driver and takes it anew.
func (s *Stage) trainCost() ([]Row, error) {
	t, err := s.startTrio(8*gib, "init", s.script("timing")...)
	if err != nil {
		return nil, err
	}
	train, err := t.warm(s.rounds(60), 1, "train 4")
	if err != nil {
		return nil, err
	}
	churn, err := t.warm(s.rounds(60), 1, "churn 5")
	if err != nil {
		return nil, err
	}
	return []Row{
		train[0].times(1000).row("training step", nanoseconds).within(1, 0),
		churn[0].times(1000).row("step that empties the cache", nanoseconds).within(2, 0),
	}, nil
}

// memoryCost is what the library takes of the host's memory, in a process that has
// a thousand allocations and has started NVML itself, which the library does too.
func (s *Stage) memoryCost() ([]Row, error) {
	var private, own, nvml series // of the last only the native ones
	for round := range s.rounds(5) {
		for _, i := range turns(round) {
			f, before, err := s.footprint(i == 2)
			if err != nil {
				return nil, err
			}
			private[i] = append(private[i], f[2])
			own[i] = append(own[i], f[3]+f[4])
			if i != 2 { // which has started it by then
				nvml[i] = append(nvml[i], f[2]-before)
			}
		}
	}
	process := private.row("private memory of the process", kibibytes)
	process.Target, process.Verdict = "≤ +1024 KiB", Kept
	if process.More.Median > 1024 {
		process.Verdict = Missed
	}
	return []Row{process, own.row("of it the library's files and the region", kibibytes), nvml.row("NVML, which the library starts", kibibytes)}, nil
}

// footprint is the host's memory of one process, and its private part before NVML was
// started.
func (s *Stage) footprint(rationed bool) (f []float64, before float64, err error) {
	inner := s.stage(s.quick)
	defer inner.close()
	if rationed {
		if err := inner.open(2 * gib); err != nil {
			return nil, 0, err
		}
	}
	p, err := inner.start(nil, s.native("timing")...)
	if err != nil {
		return nil, 0, err
	}
	for _, line := range []string{"init", fmt.Sprintf("live 1000 %d", 64<<10), "launch 1000"} {
		if _, err := p.ask(0, "%s", line); err != nil {
			return nil, 0, err
		}
	}
	if f, err = p.ask(6, "memory"); err != nil {
		return nil, 0, err
	}
	before = f[2]
	if _, err := p.ask(0, "nvml"); err != nil {
		return nil, 0, err
	}
	f, err = p.ask(6, "memory")
	return f, before, err
}
