package gputest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"ration/check/bench"
	"ration/internal/humanfmt"
)

func trainingChecks() []Check {
	train := func(limit uint64, n int, env ...string) func(*Trial) error {
		return func(t *Trial) error {
			if len(env) > 0 { // the allocator with pools
				t.poolSlack = 64 * mib // the size of a request
			}
			return t.train(limit, n, env)
		}
	}
	return []Check{
		{Group: "count", Name: "training", Needs: []string{torch}, Room: 13 * gib, run: train(12*gib, 1)},
		{Group: "count", Name: "training-x8", Needs: []string{torch}, Room: 49 * gib, run: train(48*gib, 8)},
		{Group: "count", Name: "training-async", Needs: []string{torch}, Room: 13 * gib, run: train(12*gib, 1, torchAlloc("backend:cudaMallocAsync")...)},
	}
}

// train compares the counts before, during and after a training loop, at the limit
// and after it, and while the loop runs.
func (t *Trial) train(limit uint64, n int, env []string) error {
	const layers, steps = 6, 60
	if err := t.open(limit); err != nil {
		return err
	}
	if err := t.startAll(n, env, t.script("train", strconv.Itoa(layers), strconv.Itoa(steps))...); err != nil {
		return err
	}
	if err := t.waitAt("ready"); err != nil {
		return err
	}
	o := t.observeCounts()
	defer o.stop()
	for _, step := range []string{"warm", "during", "after", "limit", "again"} {
		if err := t.nextStep(step); err != nil {
			return err
		}
		all, err := t.compare(step)
		if err != nil {
			return err
		}
		if step == "after" {
			var sum uint64
			for _, a := range all {
				sum += a.ration
			}
			t.note("held %s after training", humanfmt.Bytes(sum))
		}
	}
	if err := errors.Join(t.checkObserved(o, n), t.checkRunning(o, n)); err != nil {
		return err
	}
	t.noteDifference()
	return t.finish()
}

// minReadings is the least number of readings of a working job on a real GPU.
const minReadings = 20

// checkRunning checks the differences that were read while programs worked. The two
// counts are not read at one instant, so outliers are left out.
func (t *Trial) checkRunning(o *countObserver, n int) error {
	all := bench.Samples(o.differences)
	slices.Sort(all)
	low, high := all.Percentile(5), all.Percentile(95)
	t.values["running_low"], t.values["running_high"] = int64(low), int64(high)
	t.note("running %+.1f to %+.1f MiB in %s readings", low/float64(mib), high/float64(mib), humanfmt.Count(len(all)))
	tolerance := float64(max(toleranceBytes*uint64(n), o.mostDriver/toleranceShare))
	if low < -tolerance || high > tolerance {
		return fmt.Errorf("while running, ration's count differed from the driver's by %+.0f to %+.0f bytes", low, high)
	}
	if t.NVML == "" && len(all) < minReadings {
		return fmt.Errorf("only %d readings were made while running, not %d", len(all), minReadings)
	}
	return nil
}
