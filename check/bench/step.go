package bench

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"ration/internal/abi"
	"ration/internal/limit"
)

const trainers = 8

// A training step, as it was seen in production. check/programs/benchworker has the same numbers.
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
func step(env Env) (result Result, err error) {
	steps := env.pick(100, 3)
	for _, of := range []struct {
		name   string
		lang   language
		locked bool
	}{{"accounting", inC, false}, {"accounting", inGo, false}, {"file lock", inC, true}} {
		env.Say(fmt.Sprintf("%d steps, %s in %s", steps, of.name, of.lang))
		var share, spent, length Samples
		err := inRegion(func(path string) error {
			c, err := openCrew(of.lang, trainers, path, largeLimit)
			if err != nil {
				return err
			}
			defer c.close()
			order := fmt.Sprintf("steps %d", steps)
			if of.locked {
				order += " " + path + ".lock"
			}
			answers, err := c.atOnce(always("%s", order))
			for _, a := range answers {
				for i := 0; i+1 < len(a); i += 2 {
					length, spent, share = append(length, a[i]), append(spent, a[i+1]), append(share, 100*a[i+1]/a[i])
				}
			}
			return err
		})
		if err != nil {
			return result, err
		}
		row := share.row(of.name+", of a step", Percent).in(of.lang)
		if !of.locked {
			result.Rows = append(result.Rows, length.row("a step", Nanoseconds).in(of.lang))
			row = row.judge(1, "< 1 %")
		}
		result.Rows = append(result.Rows, row, spent.row(of.name, Nanoseconds).in(of.lang))
	}
	result.Notes = []string{
		fmt.Sprintf("%d processes; %d allocations forward, %d backward, %d at once in the all-reduce, %d frees in the optimiser, the rest freed at the end.",
			trainers, forward, backward, allReduce, optimiser),
		"The device's time is slept. File lock: the same with each call behind one. Accounting is the sum over all calls and threads, with the clock's own time.",
	}
	return result, nil
}

// stepSleep sleeps for as long as the device has work; tests replace it.
var stepSleep = time.Sleep

// steps runs training steps of about 20 ms each. Each returns all that it charges.
func (w *worker) steps(n int) error {
	var answer []float64
	var spent atomic.Int64 // nanoseconds that accounting took in this step, of all threads
	call := func(change func(int, abi.Kind, uint64) error) error {
		from := time.Now()
		defer func() { spent.Add(int64(time.Since(from))) }()
		return change(0, abi.Data, tensor)
	}
	for range n {
		spent.Store(0)
		from := time.Now()
		for i := range forward + backward {
			if err := call(w.slots[0].Charge); err != nil {
				return err
			}
			if i%burst == burst-1 {
				stepSleep(1300 * time.Microsecond)
			}
		}
		_, err := together(allReduce, func() error { return call(w.slots[0].Charge) })
		stepSleep(2 * time.Millisecond)
		for i := range forward + backward + allReduce {
			err = errors.Join(err, call(w.slots[0].Return))
			if i == optimiser-1 {
				stepSleep(2 * time.Millisecond)
			}
		}
		if err != nil {
			return err
		}
		answer = append(answer, float64(time.Since(from)), float64(spent.Load()))
	}
	return w.answer(answer...)
}
