package bench

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/abi"
	"ration/internal/procgroup"
)

const scalerRole = "bench-scaler"

// scale measures whether writers slow each other. A machine has only so many
// CPUs, so the figure is CPU time: a process that waits for its turn on a CPU
// costs nothing, one that waits for a neighbour's cache line does.
func scale(env Env) (Result, error) {
	var result Result
	sizes := []int{1, 2, 4, 8, 16, 32}
	for _, where := range []struct {
		name   string
		device func(i int) int
	}{
		{"own devices", func(i int) int { return i % abi.Devices }},
		{"one device", func(int) int { return 0 }},
	} {
		var first Row
		for _, n := range sizes {
			env.Say(fmt.Sprintf("%d processes, %s", n, where.name))
			row, err := climbers(env, n, where.device)
			if err != nil {
				return result, err
			}
			row.Name = fmt.Sprintf("%2d processes, %s", n, where.name)
			if n == 1 {
				row.Name = " 1 process, " + where.name
				first = row
			} else if where.name == "own devices" {
				row = row.within(row.Value, 1.5*first.Value, "≤ 1.5 × 1")
			}
			result.Rows = append(result.Rows, row)
		}
	}
	result.Notes = []string{
		fmt.Sprintf("CPU time for each charge; M/s: all processes together, on %d CPUs. Beyond that they share CPUs.", runtime.NumCPU()),
		fmt.Sprintf("Of 32 processes on own devices, two share each of %d. On one device all swap one word: that is the exact limit's price.", abi.Devices),
	}
	return result, nil
}

// climbers measures n processes that charge without pause.
func climbers(env Env, n int, device func(int) int) (Row, error) {
	var cpu, bare, rate Samples
	err := inRegion(func(path string) error {
		r, err := create(path, roomy)
		if err != nil {
			return err
		}
		defer r.Close()
		for range env.pick(5, 1) {
			c, err := procgroup.Start(procgroup.Spec{Role: scalerRole, N: n, Gates: 1, Task: func(i int) any {
				return climbing{Path: path, Device: device(i), For: env.pause(200 * time.Millisecond)}
			}})
			if err != nil {
				return err
			}
			c.Open(0)
			done, err := procgroup.Gather[climbed](c, time.Minute)
			c.Close()
			if err != nil {
				return err
			}
			var ops, spent, add float64
			first, last := done[0].From, done[0].To
			for _, d := range done {
				ops, spent, add = ops+d.Ops, spent+d.CPU, add+d.Bare/float64(n)
				first, last = min(first, d.From), max(last, d.To)
			}
			cpu, bare, rate = append(cpu, spent/ops), append(bare, add), append(rate, ops/(last-first)*1e9)
		}
		return nil
	})
	row := cpu.row("", Nanoseconds).beside(bare.row("", Nanoseconds))
	row.PerSecond = rate.row("", Count).Value
	return row, err
}

// climbing is what a scaler is told.
type climbing struct {
	Path   string
	Device int
	For    time.Duration
}

// climbed is what it did. Times are nanoseconds; From and To are of the clock that
// all processes share.
type climbed struct{ Ops, CPU, From, To, Bare float64 }

// climb charges without pause for a while, and then adds to a word of its own.
func climb(p *procgroup.Post) error {
	var t climbing
	if err := p.Task(&t); err != nil {
		return err
	}
	_, s, err := join(t.Path, fmt.Sprintf("scaler %d", p.Index))
	if err != nil {
		return err
	}
	const batch = 1000
	p.Wait(0)
	var out climbed
	from, spent := time.Now(), clockAt(unix.CLOCK_PROCESS_CPUTIME_ID)
	out.From = clockAt(unix.CLOCK_MONOTONIC)
	for time.Since(from) < t.For {
		for range batch {
			if err := s.Charge(t.Device, abi.Data, abi.Unit); err != nil {
				return err
			}
		}
		if err := s.Return(t.Device, abi.Data, batch*abi.Unit); err != nil {
			return err
		}
		out.Ops += batch + 1
	}
	out.To, out.CPU = clockAt(unix.CLOCK_MONOTONIC), clockAt(unix.CLOCK_PROCESS_CPUTIME_ID)-spent

	var word uint64
	const adds = 500_000
	spent = clockAt(unix.CLOCK_PROCESS_CPUTIME_ID)
	for range adds {
		atomic.AddUint64(&word, 1)
	}
	out.Bare = (clockAt(unix.CLOCK_PROCESS_CPUTIME_ID) - spent) / adds
	if err := s.Leave(); err != nil {
		return err
	}
	return p.Report(out)
}

// clockAt reads a clock, in nanoseconds.
func clockAt(id int32) float64 {
	var now unix.Timespec
	if unix.ClockGettime(id, &now) != nil {
		return 0
	}
	return float64(now.Nano())
}
