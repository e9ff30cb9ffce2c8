package gputest

import (
	"fmt"
	"time"
)

// restarts is how many times the programs of a measure are started anew: two
// processes of the same program differ for as long as they live, for example by
// where their memory lies.
const restarts = 4

// compareTrios calls compare with several trios, one after the other, each pinned to
// one CPU: the programs of a trio take turns anyway. compare returns a series for
// each row.
func (t *Trial) compareTrios(limit uint64, compare func(trio) ([]series, error)) (all []series, err error) {
	for range t.rounds(restarts) {
		inner := t.newTrial(t.quick)
		inner.flags = t.flags
		some, err := inner.compareTrio(limit, compare)
		inner.close()
		if err != nil {
			return nil, fmt.Errorf("%w %s", err, inner.logs())
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

func (t *Trial) compareTrio(limit uint64, compare func(trio) ([]series, error)) ([]series, error) {
	cpu, err := pinCPU()
	if err != nil {
		return nil, err
	}
	three, err := t.startTrio(limit, fmt.Sprintf("pin %d", cpu), t.native("timing")...)
	if err != nil {
		return nil, err
	}
	if err := three.do("init"); err != nil {
		return nil, err
	}
	return compare(three)
}

// warm is compare after a round that does not count, in which caches and clocks adapt
// to the command.
func (three trio) warm(rounds, numbers int, command string) ([]series, error) {
	if _, err := three.compare(1, numbers, command); err != nil {
		return nil, err
	}
	return three.compare(rounds, numbers, command)
}

// allocCost measures an allocation and a free, with few and many other allocations.
func (t *Trial) allocCost() (rows []Row, err error) {
	const piece = 1 << 20
	lives := []int{0, 1000, 10_000}
	all, err := t.compareTrios(12*gib, func(three trio) (out []series, err error) {
		for _, live := range lives {
			// As large as the measured allocation, so that no block has room for it.
			if err := three.do(fmt.Sprintf("live %d %d", live, piece)); err != nil {
				return nil, err
			}
			both, err := three.warm(t.rounds(40), 2, fmt.Sprintf("alloc 50 %d", piece))
			if err != nil {
				return nil, err
			}
			out = append(out, both...)
		}
		// From a block that the driver already has, without a call of the kernel.
		if err := three.do(fmt.Sprintf("live 1 %d", 64<<10)); err != nil {
			return nil, err
		}
		for _, command := range []string{fmt.Sprintf("alloc 200 %d", 64<<10), fmt.Sprintf("async 200 %d", piece)} {
			both, err := three.warm(t.rounds(40), 2, command)
			if err != nil {
				return nil, err
			}
			out = append(out, both...)
		}
		info, err := three.warm(t.rounds(20), 1, "info 200")
		return append(out, info...), err
	})
	if err != nil {
		return nil, err
	}
	for i, live := range lives {
		for j, call := range []string{"cuMemAlloc", "cuMemFree"} {
			rows = append(rows, all[2*i+j].row(fmt.Sprintf("%s, %d live", call, live), nanoseconds).withTarget(1, 500))
		}
	}
	for j, call := range []string{"cuMemAlloc, from an open block", "cuMemFree, into an open block"} {
		rows = append(rows, all[6+j].row(call, nanoseconds).withTarget(1, 500))
	}
	for j, call := range []string{"cuMemAllocAsync", "cuMemFreeAsync", "cuMemGetInfo"} {
		rows = append(rows, all[8+j].row(call, nanoseconds))
	}
	return rows, nil
}

// launchCost measures a kernel launch.
func (t *Trial) launchCost() ([]Row, error) {
	launch, err := t.compareTrios(2*gib, func(three trio) ([]series, error) { return three.warm(t.rounds(90), 1, "launch 400") })
	if err != nil {
		return nil, err
	}
	return []Row{launch[0].row("kernel launch", nanoseconds).withTarget(1, 0)}, nil
}

// startCost measures cuInit and the making of a context, in several processes at
// once: until the last of them is ready.
func (t *Trial) startCost() (rows []Row, err error) {
	for _, together := range []struct{ n, rounds int }{{1, 15}, {8, 5}, {18, 3}, {32, 3}} {
		if t.quick && together.n > 8 {
			break
		}
		var ready series
		for round := range t.rounds(together.rounds) {
			for _, i := range turns(round) {
				took, err := t.startTogether(together.n, i == inJob)
				if err != nil {
					return rows, err
				}
				ready[i] = append(ready[i], took)
			}
		}
		name := fmt.Sprintf("cuInit + context, %d at once", together.n)
		if together.n == 1 {
			name = "cuInit + context"
		}
		rows = append(rows, ready.row(name, nanoseconds).withTarget(2, 0))
	}
	return rows, nil
}

// startTogether starts n programs and has them initialise the driver at one instant.
// It returns the nanoseconds until the last was ready.
func (t *Trial) startTogether(n int, rationed bool) (took float64, err error) {
	inner := t.newTrial(t.quick)
	defer inner.close()
	if rationed {
		err = inner.open(uint64(n) * 700 * mib)
	}
	if err == nil {
		took, err = inner.timeStart(n)
	}
	if err != nil {
		err = fmt.Errorf("%w %s", err, inner.logs())
	}
	return took, err
}

func (t *Trial) timeStart(n int) (float64, error) {
	if err := t.startAll(n, nil, t.native("timing")...); err != nil {
		return 0, err
	}
	// Each must have started before the instant: memory needs no device.
	if err := t.each(func(p *Program) error { _, err := p.ask(1, "memory"); return err }); err != nil {
		return 0, err
	}
	at, err := instant(50 * time.Millisecond)
	if err != nil {
		return 0, err
	}
	t.tellAll("init %d", at)
	var last float64
	err = t.each(func(p *Program) error {
		numbers, err := p.numbers(3)
		if err == nil {
			last = max(last, numbers[2]-float64(at))
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	return last, t.each(func(p *Program) error { _, err := p.ask(0, "quit"); return err })
}

// trainCost measures a training step, and a step that returns all memory to the
// driver and allocates it again.
func (t *Trial) trainCost() ([]Row, error) {
	three, err := t.startTrio(8*gib, "init", t.script("timing")...)
	if err != nil {
		return nil, err
	}
	train, err := three.warm(t.rounds(60), 1, "train 4")
	if err != nil {
		return nil, err
	}
	churn, err := three.warm(t.rounds(60), 1, "churn 5")
	if err != nil {
		return nil, err
	}
	return []Row{
		train[0].times(1000).row("training step", nanoseconds).withTarget(1, 0),
		churn[0].times(1000).row("step that empties the cache", nanoseconds).withTarget(2, 0),
	}, nil
}

// syscallCost counts the system calls of a training step, in all threads: they do not vary with
// other load on the machine.
func (t *Trial) syscallCost() ([]Row, error) {
	three, err := t.startTrio(8*gib, "init", t.native("syscalls", t.script("timing")...)...)
	if err != nil {
		return nil, err
	}
	calls, err := three.warm(t.rounds(10), 1, "calls 20")
	if err != nil {
		return nil, err
	}
	return []Row{calls[0].row("system calls of a training step", systemCalls)}, nil
}

// replayCost measures the training step that `ration bench step` replays, with kernels
// on the device and each tensor an allocation of the driver's.
func (t *Trial) replayCost() ([]Row, error) {
	t.env = []string{"PYTORCH_NO_CUDA_MEMORY_CACHING=1"}
	three, err := t.startTrio(4*gib, "init replay", t.script("timing")...)
	if err != nil {
		return nil, err
	}
	replay, err := three.warm(t.rounds(60), 1, "replay 5")
	if err != nil {
		return nil, err
	}
	return []Row{replay[0].times(1000).row("replayed training step", nanoseconds).withTarget(1, 0)}, nil
}

// memoryCost measures the host memory that the library takes, in a process that has a
// thousand allocations and has started NVML itself, as the library does.
func (t *Trial) memoryCost() ([]Row, error) {
	var private, own, nvml series // nvml: only of the native programs
	for round := range t.rounds(5) {
		for _, i := range turns(round) {
			f, before, err := t.footprint(i == inJob)
			if err != nil {
				return nil, err
			}
			private[i] = append(private[i], f[2])
			own[i] = append(own[i], f[3]+f[4])
			if i != inJob { // in which the library has started NVML before
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

// footprint returns the host memory of one process, as the program timing answers
// memory, and its private part before NVML was started. All are in KiB.
func (t *Trial) footprint(rationed bool) (f []float64, before float64, err error) {
	inner := t.newTrial(t.quick)
	defer inner.close()
	if rationed {
		if err := inner.open(2 * gib); err != nil {
			return nil, 0, err
		}
	}
	p, err := inner.start(nil, t.native("timing")...)
	if err != nil {
		return nil, 0, err
	}
	for _, command := range []string{"init", fmt.Sprintf("live 1000 %d", 64<<10), "launch 1000"} {
		if _, err := p.ask(0, "%s", command); err != nil {
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
