package demo

import (
	"fmt"
	"time"

	"ration/check/harness/cuda"
	"ration/internal/abi"
)

// churnEvery is how often a worker allocates or frees: slow enough to watch.
const churnEvery = 4 * time.Millisecond

// plan is how much memory a worker holds. All amounts are in bytes and include its
// context.
type plan struct {
	name      string
	low, high uint64 // it starts with low, and then holds between low and high
}

// worker is a program of the demo.
type worker struct {
	*cuda.Program
	plan
	context uint64 // bytes that its context takes
	seed    int
}

// plan returns the plan of worker i. All maximums together leave room for one more
// context, so that no worker is ever refused.
func (r *run) plan(i int) plan {
	if i == hog {
		return plan{"hog", r.part(280), r.part(300)}
	}
	return plan{fmt.Sprintf("worker-%d", i+1), r.part(65), r.part(99)}
}

// part returns so many thousandths of the limit, in whole units.
func (r *run) part(thousandths uint64) uint64 {
	return r.Limit / abi.Unit * thousandths / 1000 * abi.Unit
}

// start starts a worker. It waits to be attached.
func (r *run) start(p plan) (*worker, error) {
	program, err := r.machine.Start(true)
	if err != nil {
		return nil, err
	}
	return &worker{program, p, r.Context, len(r.workers) + 1}, nil
}

// guest starts one more worker, which holds nothing but its context.
func (r *run) guest(name string) (*worker, error) {
	w, err := r.start(plan{name, r.Context, r.Context})
	if err != nil {
		return nil, err
	}
	if _, err = attach(w); err == nil {
		err = r.show(w)
	}
	if err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// attach has workers initialise the driver, all at once, and take what they start
// with. It returns the longest driver call of the initialisation.
func attach(workers ...*worker) (slowest time.Duration, err error) {
	var programs []*cuda.Program
	for _, w := range workers {
		programs = append(programs, w.Program)
	}
	if err := cuda.TellInit(programs); err != nil {
		return 0, err
	}
	for _, w := range workers {
		got, err := w.Answer(within)
		slowest = max(slowest, got.Slowest)
		if err == nil && !got.OutOfMemory && w.low > w.context {
			got, err = w.Do(within, "alloc %d", w.low-w.context)
		}
		if err == nil && got.OutOfMemory {
			err = fmt.Errorf("%s was refused the memory it starts with", w.name)
		}
		if err != nil {
			return slowest, err
		}
	}
	return slowest, nil
}

// churn has a worker allocate and free between low and high until its next command.
func (w *worker) churn() {
	room := w.high - w.low
	w.Tell("churn %d %d %d %d", w.seed, room, max(room/16, abi.Unit), churnEvery.Microseconds())
}

// endChurn returns the numbers of requests and refusals, and the longest driver
// call. What the worker holds stays as it is.
func (w *worker) endChurn() (requests, refused int64, slowest time.Duration, err error) {
	w.Tell("info") // any command ends a churn
	got, err := w.Answer(within)
	if err == nil && len(got.Numbers) != 3 {
		err = fmt.Errorf("%s answered churn with %d numbers, not 3", w.name, len(got.Numbers))
	}
	if err != nil {
		return 0, 0, 0, err
	}
	_, err = w.Answer(within) // to info
	return got.Numbers[0], got.Numbers[1], got.Slowest, err
}

// quit has a worker free everything and end.
func (w *worker) quit() error {
	if _, err := w.Do(within, "quit"); err != nil {
		return err
	}
	return w.Wait(within)
}
