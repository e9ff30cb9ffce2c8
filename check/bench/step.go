package bench

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/harness"
	"ration/internal/abi"
	"ration/internal/limit"
	"ration/internal/region"
)

const (
	trainRole = "bench-train"
	trainers  = 8
)

// A training step, as it was seen in production.
const (
	forward   = 20 // allocations
	backward  = 40
	allReduce = 8  // at once
	optimiser = 10 // frees
	burst     = 5  // allocations between two waits for the device
	tensor    = 2 * uint64(limit.MiB)
)

// step replays a training step in 8 processes, and measures which share of it
// accounting takes; for comparison, the same with a file lock around every call.
func step(env Env) (Result, error) {
	steps := env.pick(100, 3)
	var rows []Row
	for _, locked := range []bool{false, true} {
		name := "accounting"
		if locked {
			name = "file lock"
		}
		env.Say(fmt.Sprintf("%d steps, %s", steps, name))
		reports, err := trainAll(steps, locked)
		if err != nil {
			return Result{}, err
		}
		var share, spent, length Samples
		for _, t := range reports {
			for i := range t.Step {
				spent, length = append(spent, t.Spent[i]), append(length, t.Step[i])
				share = append(share, 100*t.Spent[i]/t.Step[i])
			}
		}
		row := share.row(name+", of a step", Percent)
		if !locked {
			rows = append(rows, length.row("a step", Nanoseconds))
			row = row.withTarget(row.Value, 1, "< 1 %")
		}
		rows = append(rows, row, spent.row(name, Nanoseconds))
	}
	return Result{Rows: rows, Notes: []string{
		fmt.Sprintf("%d processes; %d allocations forward, %d backward, %d at once in the all-reduce, %d frees in the optimiser, the rest freed at the end.",
			trainers, forward, backward, allReduce, optimiser),
		"The device's time is slept. File lock: the same with each call behind one. Accounting is the sum over all calls and threads, with the clock's own time.",
	}}, nil
}

// trainAll runs all trainers at once.
func trainAll(steps int, locked bool) (out []trainReport, err error) {
	err = inRegion(func(path string) error {
		r, err := create(path, largeLimit)
		if err != nil {
			return err
		}
		defer r.Close()
		g, err := harness.StartGroup(harness.GroupSpec{Role: trainRole, N: trainers, Gates: 1, Task: func(int) any { return trainTask{path, steps, locked} }})
		if err != nil {
			return err
		}
		defer g.Close()
		g.Open(0)
		out, err = harness.Gather[trainReport](g, 2*time.Minute)
		return err
	})
	return out, err
}

// trainTask is the task of a trainer.
type trainTask struct {
	Path   string // of the region
	Steps  int
	Locked bool // with a file lock around every call
}

// trainReport is what each step took, and what accounting took of it, in
// nanoseconds.
type trainReport struct{ Step, Spent []float64 }

// trainer runs steps.
type trainer struct {
	slot  *region.Slot
	lock  *os.File     // nil: without a file lock
	mutex sync.Mutex   // held around the file lock, which the threads of one process share
	spent atomic.Int64 // nanoseconds that accounting took in this step, of all threads
}

// trainWorker runs steps and reports their times.
func trainWorker(self *harness.Self) error {
	var t trainTask
	if err := self.Task(&t); err != nil {
		return err
	}
	_, s, err := join(t.Path, fmt.Sprintf("trainer %d", self.Index))
	if err != nil {
		return err
	}
	tr := &trainer{slot: s}
	if t.Locked {
		if tr.lock, err = os.OpenFile(t.Path+".lock", os.O_CREATE|os.O_RDWR, 0o600); err != nil {
			return err
		}
	}
	self.Wait(0)
	var out trainReport
	for range t.Steps {
		tr.spent.Store(0)
		from := time.Now()
		if err := tr.step(); err != nil {
			return err
		}
		out.Step = append(out.Step, float64(time.Since(from)))
		out.Spent = append(out.Spent, float64(tr.spent.Load()))
	}
	if err := s.Leave(); err != nil {
		return err
	}
	return self.Report(out)
}

// step runs one step of about 20 ms. It returns all that it charges.
func (t *trainer) step() error {
	for n := range forward + backward {
		if err := t.account(t.slot.Charge); err != nil {
			return err
		}
		if n%burst == burst-1 {
			time.Sleep(1300 * time.Microsecond)
		}
	}
	var wg sync.WaitGroup
	errs := make([]error, allReduce)
	for i := range allReduce {
		wg.Go(func() { errs[i] = t.account(t.slot.Charge) })
	}
	wg.Wait()
	time.Sleep(2 * time.Millisecond)
	for n := range forward + backward + allReduce {
		if err := t.account(t.slot.Return); err != nil {
			return err
		}
		if n == optimiser-1 {
			time.Sleep(2 * time.Millisecond)
		}
	}
	return errors.Join(errs...)
}

// account makes one change and adds the time it took.
func (t *trainer) account(change func(int, abi.Kind, uint64) error) error {
	from := time.Now()
	defer func() { t.spent.Add(int64(time.Since(from))) }()
	if t.lock == nil {
		return change(0, abi.Data, tensor)
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if err := unix.Flock(int(t.lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("locking: %w", err)
	}
	defer func() { _ = unix.Flock(int(t.lock.Fd()), unix.LOCK_UN) }()
	return change(0, abi.Data, tensor)
}
