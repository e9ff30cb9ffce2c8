package gputest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"ration/internal/bench"
	"ration/internal/humanfmt"
)

func countChecks() []Check {
	train := func(limit uint64, n int, env ...string) func(*Stage) error {
		return func(s *Stage) error {
			if len(env) > 0 { // pools
				s.undone = 64 * mib // a piece
			}
			return s.train(limit, n, env)
		}
	}
	return []Check{
		{Group: "count", Name: "training", Needs: []string{torch}, Room: 13 * gib, run: train(12*gib, 1)},
		{Group: "count", Name: "training-x8", Needs: []string{torch}, Room: 49 * gib, run: train(48*gib, 8)},
		{Group: "count", Name: "training-async", Needs: []string{torch}, Room: 13 * gib, run: train(12*gib, 1, torchAlloc("backend:cudaMallocAsync")...)},
	}
}

// train compares the counts before, in and after a training loop, at the limit and
// after it, and while the loop runs.
func (s *Stage) train(limit uint64, n int, env []string) error {
	const layers, steps = 6, 60
	if err := s.open(limit); err != nil {
		return err
	}
	if err := s.startAll(n, env, s.script("train", strconv.Itoa(layers), strconv.Itoa(steps))...); err != nil {
		return err
	}
	if err := s.meet("ready"); err != nil {
		return err
	}
	w := s.watch()
	defer w.stop()
	for _, step := range []string{"warm", "during", "after", "limit", "again"} {
		if err := s.goOn(step); err != nil {
			return err
		}
		all, err := s.agree(step)
		if err != nil {
			return err
		}
		if step == "after" {
			var ours uint64
			for _, a := range all {
				ours += a.ours
			}
			s.see("held %s after training", humanfmt.Bytes(ours))
		}
	}
	if err := errors.Join(s.kept(w, n), s.running(w, n)); err != nil {
		return err
	}
	s.seeOff()
	return s.finish()
}

// fewest is how many readings of a real GPU say something about programs at work.
const fewest = 20

// running judges the readings that were made while programs worked: the two counts
// are not read in one instant, so the middle nine tenths count.
func (s *Stage) running(w *watch, n int) error {
	off := bench.Samples(w.Off)
	slices.Sort(off)
	low, high := off.Percentile(5), off.Percentile(95)
	s.values["running_low"], s.values["running_high"] = int64(low), int64(high)
	s.see("running %+.1f to %+.1f MiB in %s readings", low/float64(mib), high/float64(mib), humanfmt.Count(len(off)))
	near := float64(max(near*uint64(n), w.Most/share))
	if low < -near || high > near {
		return fmt.Errorf("while running, our count differed from the driver's by %+.0f to %+.0f bytes", low, high)
	}
	if s.NVML == "" && len(off) < fewest {
		return fmt.Errorf("only %d readings were made while running, not %d", len(off), fewest)
	}
	return nil
}
