package bench

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/harness"
	"ration/internal/abi"
	"ration/internal/region"
)

const attachRole = "bench-attach"

// Gates of attachWorker.
const (
	gateStart = iota
	gateEnd
	attachGates
)

// attach measures how long a process takes to attach to a region and claim a slot:
// to a region that is ready, to one that does not exist yet; and what processes
// that start and exit fast leave behind.
func attach(env Env) (Result, error) {
	var result Result
	for _, racing := range []struct {
		n, rounds int
		most      time.Duration
		target    string
	}{
		{8, env.pick(50, 2), time.Millisecond, "< 1 ms"},
		{env.pick(300, 30), env.pick(4, 1), 5 * time.Millisecond, "< 5 ms"},
	} {
		rows, err := attachReady(env, racing.n, racing.rounds, racing.most, racing.target)
		if err != nil {
			return result, err
		}
		result.Rows = append(result.Rows, rows...)
	}
	for _, n := range []int{8, 18, 32} {
		row, err := attachCold(env, n, env.pick(10, 1))
		if err != nil {
			return result, err
		}
		result.Rows = append(result.Rows, row)
	}
	row, err := startAndExit(env, env.pick(50, 3), 16)
	result.Rows = append(result.Rows, row)
	result.Notes = []string{
		"Open and claim, timed inside each process; processes are started, and their runtime set up, before the clock starts.",
		fmt.Sprintf("All of a round pass one gate at once, and share %d CPUs: the control beside them uses the median CPU time of an attach and no region.", runtime.NumCPU()),
		"Spread: the least and the largest sample.",
	}
	return result, err
}

// attachReady lets n processes at a time attach to a region that is initialised.
func attachReady(env Env, n, rounds int, most time.Duration, target string) ([]Row, error) {
	var times, spent, control Samples
	fast := 0
	err := inRegion(func(path string) error {
		r, err := create(path, largeLimit)
		if err != nil {
			return err
		}
		defer r.Close()
		for round := range rounds {
			env.Say(fmt.Sprintf("%d processes attach to a ready region, round %d of %d", n, round+1, rounds))
			started, err := race(attachTask{Path: path, Hold: true}, n)
			if err != nil {
				return err
			}
			for _, s := range started {
				times, spent = append(times, float64(s.Took)), append(spent, s.CPU)
				if s.Role == region.FastPath {
					fast++
				}
			}
			// The control: as many processes released at once, which use as much CPU
			// time and no region.
			slices.Sort(spent)
			idle, err := race(attachTask{Hold: true, Burn: spent.Percentile(50)}, n)
			if err != nil {
				return err
			}
			for _, s := range idle {
				control = append(control, float64(s.Took))
			}
		}
		return nil
	})
	name := fmt.Sprintf("attach, %d racing", n)
	p50, p99 := times.at(50, name), times.at(99, name)
	p50.Note = fmt.Sprintf("%d of %d on the fast path", fast, len(times))
	return []Row{p50, p99.withTarget(p99.Value, float64(most), target), spent.at(99, "  its CPU time"), control.at(99, "  no region, same CPU")}, err
}

// attachCold lets n processes at a time start on a region that does not exist.
func attachCold(env Env, n, rounds int) (Row, error) {
	var times Samples
	var roles [4]int
	oneEach := true
	for round := range rounds {
		env.Say(fmt.Sprintf("%d processes race for a new region, round %d of %d", n, round+1, rounds))
		err := inRegion(func(path string) error {
			started, err := race(attachTask{Path: path, Hold: true}, n)
			won := 0
			for _, s := range started {
				times = append(times, float64(s.Took))
				roles[s.Role]++
				if s.Role == region.Initialiser {
					won++
				}
			}
			oneEach = oneEach && won == 1
			return err
		})
		if err != nil {
			return Row{}, err
		}
	}
	row := times.at(50, fmt.Sprintf("new region, %d racing", n))
	row.Target, row.Verdict = "1 winner", OK
	if !oneEach {
		row.Verdict = Over
	}
	row.Note = fmt.Sprintf("%d rounds: %d initialisers, %d fast, %d waited, %d helped",
		rounds, roles[region.Initialiser], roles[region.FastPath], roles[region.Waited], roles[region.Helped])
	return row, nil
}

// startAndExit starts and ends n processes, round after round, half of them without
// leaving their slot, and counts what they left behind.
func startAndExit(env Env, rounds, n int) (Row, error) {
	left := 0
	err := inRegion(func(path string) error {
		for round := range rounds {
			env.Say(fmt.Sprintf("%d processes start and end, round %d of %d", n, round+1, rounds))
			if _, err := race(attachTask{Path: path}, n); err != nil {
				return err
			}
		}
		r, err := create(path, largeLimit)
		if err != nil {
			return err
		}
		defer r.Close()
		if _, err := r.Reap(); err != nil {
			return err
		}
		processes, err := r.Processes()
		if left = len(processes); r.Used(0) != 0 {
			left++
		}
		return err
	})
	row := Row{Name: "left by fast exits", Value: float64(left), Low: float64(left), High: float64(left), Samples: rounds * n}
	row.Note = fmt.Sprintf("%d rounds of %d, half exit without leaving", rounds, n)
	return row.withTarget(row.Value, 0, "0"), err
}

// attachTask is the task of a worker.
type attachTask struct {
	Path string  // of the region
	Hold bool    // wait for gateEnd before leaving
	Burn float64 // nanoseconds of CPU time to use instead of attaching; 0 attaches
}

// attachReport is what a worker reports.
type attachReport struct {
	Role region.Role
	Took time.Duration
	CPU  float64 // nanoseconds of CPU time
}

// race has n processes attach at once.
func race(task attachTask, n int) ([]attachReport, error) {
	g, err := harness.StartGroup(harness.GroupSpec{Role: attachRole, N: n, Gates: attachGates, Task: func(int) any { return task }})
	if err != nil {
		return nil, err
	}
	defer g.Close()
	g.Open(gateStart)
	out, err := harness.Gather[attachReport](g, time.Minute)
	if err != nil {
		return out, err
	}
	g.Open(gateEnd)
	for _, w := range g.Workers {
		if err := w.Wait(time.Minute); err != nil {
			return out, err
		}
	}
	return out, nil
}

// attachWorker attaches, reports how long it took, and ends.
func attachWorker(self *harness.Self) error {
	var t attachTask
	if err := self.Task(&t); err != nil {
		return err
	}
	var opt region.Options
	opt.Limits.Memory[0] = abi.MakeLimit(largeLimit)
	runtime.LockOSThread() // so that the thread's CPU time is this goroutine's
	self.Wait(gateStart)
	from, spent := time.Now(), readClock(unix.CLOCK_THREAD_CPUTIME_ID)
	if t.Burn > 0 {
		for readClock(unix.CLOCK_THREAD_CPUTIME_ID)-spent < t.Burn {
		}
		if err := self.Report(attachReport{Took: time.Since(from), CPU: t.Burn}); err != nil {
			return err
		}
		self.Wait(gateEnd)
		return nil
	}
	r, err := region.Open(t.Path, opt)
	if err != nil {
		return err
	}
	s, err := r.Claim(fmt.Sprintf("bench %d", self.Index))
	out := attachReport{r.Role(), time.Since(from), readClock(unix.CLOCK_THREAD_CPUTIME_ID) - spent}
	if err != nil {
		return err
	}
	if err := s.Charge(0, abi.Data, chargeBytes); err != nil {
		return err
	}
	if err := self.Report(out); err != nil {
		return err
	}
	if t.Hold {
		self.Wait(gateEnd)
	} else if self.Index%2 == 1 {
		os.Exit(0)
	}
	return s.Leave()
}
