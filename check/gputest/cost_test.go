package gputest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"testing"
	"time"

	"ration/check/bench"
	"ration/check/benchpage"
	"ration/check/expect"
	"ration/internal/launch"
)

// TestCost measures what ration costs, beside the same programs without it. A target that
// is missed does not fail the test: that depends on the machine.
func TestCost(t *testing.T) {
	measure(t, "alloc", 36*gib, nil, (*trial).allocCost)
	measure(t, "launch", 3*gib, nil, func(t *trial) {
		t.cost(t.launchCost("kernel launch", 90).withTarget(1, 0))
	})
	measure(t, "start", 25*gib, nil, (*trial).startCost)
	measure(t, "run", 0, nil, (*trial).runCost)
	measure(t, "train", 16*gib, []string{torch}, func(t *trial) {
		three := t.startTrio(8*gib, "init", t.script("timing")...)
		t.cost(three.compare(t.rounds(60), 1, "train 4")[0].row("training step", nanoseconds, 1000).withTarget(1, 0))
		t.cost(three.compare(t.rounds(60), 1, "churn 5")[0].row("step that empties the cache", nanoseconds, 1000).withTarget(2, 0))
	})
	// The system calls of a training step, in all threads: they do not vary with other load on the machine.
	measure(t, "syscalls", 16*gib, []string{torch}, func(t *trial) {
		three := t.startTrio(8*gib, "init", t.native("syscalls", t.script("timing")...)...)
		t.cost(three.compare(t.rounds(10), 1, "calls 20")[0].row("system calls of a training step", systemCalls, 1))
	})
	// The training step that `ration bench step` replays, with kernels on the device and each
	// tensor an allocation of the driver's.
	measure(t, "replay", 5*gib, []string{torch}, func(t *trial) {
		t.env = []string{"PYTORCH_NO_CUDA_MEMORY_CACHING=1"}
		three := t.startTrio(4*gib, "init replay", t.script("timing")...)
		t.cost(three.compare(t.rounds(60), 1, "replay 5")[0].row("replayed training step", nanoseconds, 1000).withTarget(1, 0))
	})
	measure(t, "memory", 4*gib, nil, (*trial).memoryCost)
	// A job with neither a share nor a cap, with a share, and with a cap that is never reached.
	measure(t, "launch-compute", 3*gib, nil, func(t *trial) {
		for _, c := range []struct {
			name string
			with sharer
			most float64 // nanoseconds
		}{
			{"kernel launch, neither share nor cap", sharer{}, 0},
			{"kernel launch, with a share", sharer{share: 50}, 20},
			{"kernel launch, with a cap", sharer{cap: 100}, 50},
		} {
			t.flags = c.with.flags()
			t.cost(t.launchCost(c.name, 60).within(c.most))
		}
	})
	measure(t, "train-compute", 16*gib, []string{torch}, func(t *trial) {
		train := func(name string, with sharer) (r row) {
			t.flags = with.flags()
			t.inside(func(t *trial) {
				three := t.startTrio(8*gib, "init", t.script("timing")...)
				r = three.compare(t.rounds(40), 1, "train 4")[0].row(name, nanoseconds, 1000)
			})
			return r
		}
		t.cost(train("training step, with a share", sharer{share: 50}).withTarget(1, 0))
		t.cost(train("training step, with a cap", sharer{cap: 100}))
	})
	measure(t, "latency", 4*gib, []string{real}, (*trial).latencyCost)
}

// rounds returns the number of rounds of a measure.
func (t *trial) rounds(full int) int { return short(t, 2, full) }

// restarts is how many times the programs of a measure are started anew: two
// processes of the same program differ for as long as they live, for example by
// where their memory lies.
const restarts = 4

// compareTrios calls compare with several trios, one after the other, each pinned to
// one CPU: the programs of a trio take turns anyway. compare returns a series for
// each row.
func (t *trial) compareTrios(limit uint64, compare func(trio) []series) (all []series) {
	for range t.rounds(restarts) {
		t.inside(func(t *trial) {
			three := t.startTrio(limit, fmt.Sprintf("pin %d", pinCPU()), t.native("timing")...)
			three.do("init")
			some := compare(three)
			if all == nil {
				all = make([]series, len(some))
			}
			for i, s := range some {
				for j := range s {
					all[i][j] = append(all[i][j], s[j]...)
				}
			}
		})
	}
	return all
}

// allocCost measures an allocation and a free, with few and many other allocations.
func (t *trial) allocCost() {
	const piece = 1 << 20
	lives := []int{0, 1000, 10_000}
	all := t.compareTrios(12*gib, func(three trio) (out []series) {
		for _, live := range lives {
			// As large as the measured allocation, so that no block has room for it.
			three.do("live %d %d", live, piece)
			out = append(out, three.compare(t.rounds(40), 2, fmt.Sprintf("alloc 50 %d", piece))...)
		}
		// From a block that the driver already has, without a call of the kernel.
		three.do("live 1 %d", 64<<10)
		out = append(out, three.compare(t.rounds(40), 2, fmt.Sprintf("alloc 200 %d", 64<<10))...)
		out = append(out, three.compare(t.rounds(40), 2, fmt.Sprintf("async 200 %d", piece))...)
		return append(out, three.compare(t.rounds(20), 1, "info 200")...)
	})
	for i, live := range lives {
		for j, call := range []string{"cuMemAlloc", "cuMemFree"} {
			t.cost(all[2*i+j].row(fmt.Sprintf("%s, %d live", call, live), nanoseconds, 1).withTarget(1, 500))
		}
	}
	for j, call := range []string{"cuMemAlloc, from an open block", "cuMemFree, into an open block"} {
		t.cost(all[6+j].row(call, nanoseconds, 1).withTarget(1, 500))
	}
	for j, call := range []string{"cuMemAllocAsync", "cuMemFreeAsync", "cuMemGetInfo"} {
		t.cost(all[8+j].row(call, nanoseconds, 1))
	}
}

// launchCost measures a kernel launch.
func (t *trial) launchCost(name string, rounds int) row {
	launch := t.compareTrios(2*gib, func(three trio) []series { return three.compare(t.rounds(rounds), 1, "launch 400") })
	return launch[0].row(name, nanoseconds, 1)
}

// startCost measures cuInit and the making of a context, in several processes at
// once: until the last of them is ready.
func (t *trial) startCost() {
	for _, together := range []struct{ n, rounds int }{{1, 15}, {8, 5}, {18, 3}, {32, 3}} {
		if together.n > short(t, 8, 32) {
			break
		}
		ready := alternate(t.rounds(together.rounds), 1, func(i int) []float64 { return []float64{t.startTogether(together.n, i == inJob)} })
		name := fmt.Sprintf("cuInit + context, %d at once", together.n)
		if together.n == 1 {
			name = "cuInit + context"
		}
		t.cost(ready[0].row(name, nanoseconds, 1).withTarget(2, 0))
	}
}

// startTogether starts n programs and has them initialise the driver at one instant.
// It returns the nanoseconds until the last was ready.
func (t *trial) startTogether(n int, rationed bool) (last float64) {
	t.inside(func(t *trial) {
		if rationed {
			t.open(uint64(n) * 700 * mib)
		}
		t.startAll(n, nil, t.native("timing")...)
		for _, p := range t.programs {
			p.ask(1, "memory") // each must have started before the instant: memory needs no device
		}
		at := t.instant(50 * time.Millisecond)
		t.tellAll("init %d", at)
		for _, p := range t.programs {
			last = max(last, p.numbers(3)[2]-float64(at))
		}
		for _, p := range t.programs {
			p.ask(0, "quit")
		}
	})
	return last
}

// runCost measures what ration run takes until the command has ended, beside the command
// alone: where the devices are known from an earlier run, and where NVML must be started.
func (t *trial) runCost() {
	known, first := t.timeRuns(func() error { return nil }), t.timeRuns(func() error { return os.Remove(launch.DevicesFile()) })
	t.cost(known.row("ration run of a command", nanoseconds, 1).within(float64(10 * time.Millisecond)))
	t.cost(first.row("the first since the machine was started", nanoseconds, 1))
}

// timeRuns returns how many nanoseconds a command takes that does nothing, each time after
// a preparation.
func (t *trial) timeRuns(prepare func() error) series {
	sample := func(i int) []float64 {
		err := prepare()
		expect.Must(t, err == nil || errors.Is(err, fs.ErrNotExist), "forgetting the devices", err)
		command := []string{"true"}
		if i == inJob {
			command = []string{t.file("ration"), "run", "--mem", "1g", "--", "true"}
		}
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Env = t.environ()
		begun := time.Now()
		out, err := cmd.CombinedOutput()
		expect.OK(t, err, "timing", command, out)
		return []float64{float64(time.Since(begun))}
	}
	alternate(1, 1, sample) // files are cached then, and the devices known
	return alternate(t.rounds(30), 1, sample)[0]
}

// memoryCost measures the host memory that the library takes, in a process that has a
// thousand allocations and has started NVML itself, as the library does.
func (t *trial) memoryCost() {
	all := alternate(t.rounds(5), 3, func(i int) []float64 { return t.footprint(i == inJob) })
	nvml := all[2]
	nvml[inJob] = nil // in which the library has started NVML before
	t.cost(all[0].row("private memory of the process", kibibytes, 1).within(1024))
	t.cost(all[1].row("of it the library's files and the region", kibibytes, 1))
	t.cost(nvml.row("NVML, which the library starts", kibibytes, 1))
}

// footprint returns the private host memory of one process, the part of it that the
// library's files and the region take, and by how much the start of NVML raised it, in KiB.
func (t *trial) footprint(rationed bool) (out []float64) {
	t.inside(func(t *trial) {
		if rationed {
			t.open(2 * gib)
		}
		p := t.start(nil, t.native("timing")...)
		p.ask(0, "init")
		p.ask(0, "live 1000 %d", 64<<10)
		p.ask(0, "launch 1000")
		before := p.ask(6, "memory")
		p.ask(0, "nvml")
		f := p.ask(6, "memory")
		out = []float64{f[2], f[3] + f[4], f[2] - before[2]}
	})
	return out
}

// latencyCost measures how long a small kernel takes: alone, beside a busy neighbour without
// ration, and with both in jobs of half the device, for several rounds.
func (t *trial) latencyCost() {
	p := t.pace(launches)
	median, high := t.latencies(p, sharer{native: true}, false)
	t.cost(latencyRow("small kernel alone, p50", median, nil))
	t.cost(latencyRow("small kernel alone, p99", high, nil))
	median, high = t.latencies(p, sharer{native: true}, true)
	for _, round := range []string{"2ms", "10ms", "20ms", "40ms"} {
		inMedian, inHigh := t.latencies(p, sharer{share: 50, round: round}, true)
		name := "small kernel beside a busy job, round of " + round
		t.cost(latencyRow(name+", p50", median, inMedian))
		t.cost(latencyRow(name+", p99", high, inHigh))
	}
}

// latencyRow is a row of tries without ration and with it, if there are any. The two do not
// take turns, so that there is no noise to compare with.
func latencyRow(name string, native, in bench.Samples) row {
	r := row{Name: name, Unit: nanoseconds, Native: spread(native), Control: spread(native), Rounds: len(native)}
	if in == nil {
		return r
	}
	r.Ration = spread(in)
	r.More = benchpage.Spread{Low: r.Ration.Low - r.Native.High, Median: r.Ration.Median - r.Native.Median, High: r.Ration.High - r.Native.Low}
	r.Ratio = r.Ration.Median / r.Native.Median
	return r
}

// latencies times small kernels of a job of one kind, beside another that is busy if there
// is to be one. It returns the medians and the 99th percentiles of several tries, in
// nanoseconds.
func (t *trial) latencies(p pace, kind sharer, beside bool) (median, high bench.Samples) {
	const each, pause = 1200 * time.Millisecond, 100 * time.Millisecond
	t.inside(func(t *trial) {
		small := pace{rounds: max(1, p.rounds/10), ns: p.ns / 10}
		a, b := t.joinBusy(kind, launches, small)[0], t.joinBusy(kind, launches, p)
		tries := t.rounds(3)
		if beside {
			t.beginTogether(b, time.Duration(tries+1)*(each+2*pause), pause)
		}
		time.Sleep(pause + warmUp)
		for range tries {
			n := a.ask(3, "latency %d %d", t.instant(0), each.Milliseconds())
			median, high = append(median, n[0]), append(high, n[1])
		}
		if beside {
			b[0].progress(pause)
		}
		t.enforced()
	})
	return median, high
}
