package bench

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/harness"
	"ration/internal/abi"
)

const scaleRole = "bench-scale"

// scale measures whether writers slow each other down. The processes may outnumber
// the CPUs, so it measures CPU time: waiting for a CPU takes none, waiting for the
// cache line of another writer does.
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
			row, err := measureScale(env, n, where.device)
			if err != nil {
				return result, err
			}
			row.Name = fmt.Sprintf("%2d processes, %s", n, where.name)
			if n == 1 {
				row.Name = " 1 process, " + where.name
				first = row
			} else if where.name == "own devices" {
				row = row.withTarget(row.Value, 1.5*first.Value, "≤ 1.5 × 1")
			}
			result.Rows = append(result.Rows, row)
		}
	}
	result.Notes = []string{
		fmt.Sprintf("CPU time for each charge; M/s: all processes together, on %d CPUs. Beyond that they share CPUs.", runtime.NumCPU()),
		fmt.Sprintf("Of 32 processes on own devices, two share each of %d. On one device all change one word: that is the price of an exact limit.", abi.Devices),
	}
	return result, nil
}

// measureScale measures n processes that charge without pause.
func measureScale(env Env, n int, device func(int) int) (Row, error) {
	var cpu, bare, rate Samples
	err := inRegion(func(path string) error {
		r, err := create(path, largeLimit)
		if err != nil {
			return err
		}
		defer r.Close()
		for range env.pick(5, 1) {
			g, err := harness.StartGroup(harness.GroupSpec{Role: scaleRole, N: n, Gates: 1, Task: func(i int) any {
				return scaleTask{Path: path, Device: device(i), For: env.pause(200 * time.Millisecond)}
			}})
			if err != nil {
				return err
			}
			g.Open(0)
			done, err := harness.Gather[scaleReport](g, time.Minute)
			g.Close()
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
	row := cpu.row("", Nanoseconds).relativeTo(bare.row("", Nanoseconds))
	row.PerSecond = rate.row("", Count).Value
	return row, err
}

// scaleTask is the task of a worker.
type scaleTask struct {
	Path   string // of the region
	Device int
	For    time.Duration
}

// scaleReport is what a worker reports. Times are in nanoseconds.
type scaleReport struct {
	Ops, CPU float64 // charges, and their CPU time
	From, To float64 // begin and end, by the clock that all processes share
	Bare     float64 // CPU time of a bare atomic add
}

// scaleWorker charges without pause for a while, and then measures the bare
// operation.
func scaleWorker(self *harness.Self) error {
	var t scaleTask
	if err := self.Task(&t); err != nil {
		return err
	}
	_, s, err := join(t.Path, fmt.Sprintf("bench %d", self.Index))
	if err != nil {
		return err
	}
	const batch = 1000
	self.Wait(0)
	var out scaleReport
	from, spent := time.Now(), readClock(unix.CLOCK_PROCESS_CPUTIME_ID)
	out.From = readClock(unix.CLOCK_MONOTONIC)
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
	out.To, out.CPU = readClock(unix.CLOCK_MONOTONIC), readClock(unix.CLOCK_PROCESS_CPUTIME_ID)-spent

	var word uint64
	const adds = 500_000
	spent = readClock(unix.CLOCK_PROCESS_CPUTIME_ID)
	for range adds {
		atomic.AddUint64(&word, 1)
	}
	out.Bare = (readClock(unix.CLOCK_PROCESS_CPUTIME_ID) - spent) / adds
	if err := s.Leave(); err != nil {
		return err
	}
	return self.Report(out)
}

// readClock returns the time of a clock, in nanoseconds.
func readClock(id int32) float64 {
	var now unix.Timespec
	if unix.ClockGettime(id, &now) != nil {
		return 0
	}
	return float64(now.Nano())
}
