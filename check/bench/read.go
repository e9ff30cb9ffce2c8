package bench

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"ration/check/harness"
	"ration/check/observer"
	"ration/internal/abi"
	"ration/internal/region"
)

const (
	writeRole = "bench-write"
	writers   = 8
)

// read measures readers: of a device's usage, and of what each process holds while
// 8 processes write.
func read(env Env) (Result, error) {
	var result Result
	err := inRegion(func(path string) error {
		r, err := create(path, largeLimit)
		if err != nil {
			return err
		}
		defer r.Close()
		rows, err := readUsage(env, r)
		if err != nil {
			return err
		}
		result.Rows = append(rows, measureClock(env))
		if rows, err = plainRead(env, r); err != nil {
			return err
		}
		result.Rows = append(result.Rows, rows...)
		for _, load := range []struct {
			name  string
			pause time.Duration
		}{{"busy", 0}, {"1000/s", time.Millisecond}} {
			rows, err := snapshots(env, r, path, load.name, load.pause)
			if err != nil {
				return err
			}
			result.Rows = append(result.Rows, rows...)
		}
		return nil
	})
	result.Notes = []string{
		"One slot: its writer is a thread of this process, which writes without a pause. A plain sequence lock has one copy: its reader waits for a writer in the middle, also one that is stopped; ours has two.",
		"A snapshot is the bytes by kind of 8 processes, each read consistently, while all 8 write.",
		"Its times include the clock's own; spread: the least and the largest sample.",
	}
	return result, err
}

func readUsage(env Env, r *region.Region) ([]Row, error) {
	env.Say("usage of a device")
	var word uint64
	bare, op, err := alternate(env.pick(61, 3), func() (float64, error) {
		sum, from := uint64(0), time.Now()
		for range opsPerRound {
			sum += atomic.LoadUint64(&word)
		}
		took := perOp(from, opsPerRound)
		runtime.KeepAlive(sum)
		return took, nil
	}, func() (float64, error) {
		sum, from := uint64(0), time.Now()
		for range opsPerRound {
			sum += r.Used(0)
		}
		took := perOp(from, opsPerRound)
		runtime.KeepAlive(sum)
		return took, nil
	})
	load := bare.row("bare atomic load", Nanoseconds)
	used := op.row("usage of a device", Nanoseconds).relativeTo(load).throughput()
	return []Row{load.throughput(), used.withTarget(used.Ratio, 3, "≤ 3 ×")}, err
}

// measureClock measures two readings of the clock, which are part of every timed
// read.
func measureClock(env Env) Row {
	times := make(Samples, env.pick(100_000, 1000))
	for i := range times {
		from := time.Now()
		times[i] = float64(time.Since(from))
	}
	return times.row("the clock itself", Nanoseconds)
}

// snapshots reads what 8 processes hold while they write, and counts how often a
// read had to be repeated.
func snapshots(env Env, r *region.Region, path, name string, pause time.Duration) ([]Row, error) {
	env.Say("a snapshot of 8 " + name + " writers")
	g, err := harness.StartGroup(harness.GroupSpec{Role: writeRole, N: writers, Task: func(int) any { return writeTask{path, pause} }})
	if err != nil {
		return nil, err
	}
	defer g.Close()
	if _, err := harness.Gather[bool](g, time.Minute); err != nil {
		return nil, err
	}
	before, err := r.Counters()
	if err != nil {
		return nil, err
	}
	times := make(Samples, 0, 8_000_000)
	buf := make([]region.Holding, 0, writers)
	torn := 0
	for until := time.Now().Add(env.pause(2 * time.Second)); len(times) < cap(times); {
		from := time.Now()
		buf, err = r.Holdings(0, buf[:0])
		to := time.Now()
		if err != nil {
			return nil, err
		}
		times = append(times, float64(to.Sub(from)))
		torn += inconsistent(buf)
		if to.After(until) {
			break
		}
	}
	after, err := r.Counters()
	if err != nil {
		return nil, err
	}
	for _, w := range g.Workers {
		if err := w.Kill(); err != nil {
			return nil, err
		}
	}
	if _, err := r.Reap(); err != nil {
		return nil, err
	}

	reads := float64(after.Reads - before.Reads)
	count := func(name string, n uint64) Row {
		return Row{Name: name, Value: float64(n), Low: float64(n), High: float64(n), Samples: len(times)}
	}
	retries := Row{Name: "tried again, " + name, Unit: Percent, Value: 100 * float64(after.Retries-before.Retries) / reads, Samples: int(reads)}
	retries.Low, retries.High = retries.Value, retries.Value
	best := count("best effort, "+name, after.BestEffort-before.BestEffort)
	if pause > 0 {
		return []Row{
			times.at(50, "snapshot, "+name),
			retries.withTarget(retries.Value, 0.1, "< 0.1 %"),
			best.withTarget(best.Value, 0, "0"),
		}, nil
	}
	p50, p999 := times.at(50, "snapshot, "+name), times.at(99.9, "snapshot, "+name)
	tornRow := count("torn, "+name, uint64(torn))
	return []Row{
		p50.withTarget(p50.Value, 300, "< 300 ns"), times.at(99, "snapshot, "+name), p999.withTarget(p999.Value, 10_000, "< 10 µs"),
		retries, best.withTarget(best.Value, 0, "0"), tornRow.withTarget(tornRow.Value, 0, "0"),
	}, nil
}

// inconsistent counts the holdings whose total is not the sum of their kinds, and
// that are not marked as best effort.
func inconsistent(all []region.Holding) (n int) {
	for _, h := range all {
		if observer.Sum(h) != h.Total && !h.BestEffort {
			n++
		}
	}
	return n
}

// writeTask is the task of a writer.
type writeTask struct {
	Path  string        // of the region
	Pause time.Duration // between two changes
}

// writeWorker charges and returns, of two kinds, until it is killed.
func writeWorker(self *harness.Self) error {
	var t writeTask
	if err := self.Task(&t); err != nil {
		return err
	}
	_, s, err := join(t.Path, fmt.Sprintf("writer %d", self.Index))
	if err != nil {
		return err
	}
	if err := self.Report(true); err != nil {
		return err
	}
	steps := [4]func() error{
		func() error { return s.Charge(0, abi.Data, chargeBytes) },
		func() error { return s.Charge(0, abi.Module, chargeBytes) },
		func() error { return s.Return(0, abi.Data, chargeBytes) },
		func() error { return s.Return(0, abi.Module, chargeBytes) },
	}
	for n := 0; ; n++ {
		if err := steps[n%len(steps)](); err != nil {
			return err
		}
		if t.Pause > 0 {
			time.Sleep(t.Pause)
		}
	}
}
