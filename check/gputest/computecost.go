package gputest

import (
	"fmt"
	"time"

	"ration/check/bench"
	"ration/internal/humanfmt"
)

// launchComputeCost measures a kernel launch in a job with neither a share nor a cap, with
// a share, and with a cap that is never reached.
func (t *Trial) launchComputeCost() (rows []Row, err error) {
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
		all, err := t.compareTrios(2*gib, func(three trio) ([]series, error) { return three.warm(t.rounds(60), 1, "launch 400") })
		if err != nil {
			return rows, err
		}
		rows = append(rows, all[0].row(c.name, nanoseconds).within(c.most))
	}
	return rows, nil
}

// within sets the target of a row: at most so many of its units more. Where the two native
// programs differ by more than that, and ration from them by no more than they from each
// other, it decides nothing.
func (r Row) within(most float64) Row {
	text := fmt.Sprintf("%g %s", most, r.Unit)
	if r.Unit == nanoseconds && most > 0 {
		text = humanfmt.Nanoseconds(most)
	}
	r.Target, r.Verdict = "≤ +"+text, Kept
	noise := r.Noise * r.Native.Median
	switch {
	case r.More.Median <= most:
	case r.More.Median <= noise:
		r.Verdict = Unclear
	default:
		r.Verdict = Missed
	}
	return r
}

// trainComputeCost measures a training step alone in a job with a share, and in one with a cap
// that is never reached.
func (t *Trial) trainComputeCost() (rows []Row, err error) {
	for _, c := range []struct {
		name   string
		with   sharer
		target float64 // per cent more; 0: none
	}{
		{"training step, with a share", sharer{share: 50}, 1},
		{"training step, with a cap", sharer{cap: 100}, 0},
	} {
		inner := t.newTrial(t.quick)
		inner.flags = c.with.flags()
		train, err := inner.trainStep()
		inner.close()
		if err != nil {
			return rows, fmt.Errorf("%w %s", err, inner.logs())
		}
		row := train.times(1000).row(c.name, nanoseconds)
		if c.target > 0 {
			row = row.withTarget(c.target, 0)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func (t *Trial) trainStep() (series, error) {
	three, err := t.startTrio(8*gib, "init", t.script("timing")...)
	if err != nil {
		return series{}, err
	}
	train, err := three.warm(t.rounds(40), 1, "train 4")
	if err != nil {
		return series{}, err
	}
	return train[0], nil
}

// latencyCost measures how long a small kernel takes: alone, beside a busy neighbour without
// ration, and with both in jobs of half the device, for several rounds.
func (t *Trial) latencyCost() (rows []Row, err error) {
	p, err := t.pace(launches)
	if err != nil {
		return nil, err
	}
	alone, err := t.latencies(p, sharer{native: true}, false)
	if err != nil {
		return nil, err
	}
	rows = append(rows, latencyRow("small kernel alone, p50", alone.median, nil), latencyRow("small kernel alone, p99", alone.high, nil))
	native, err := t.latencies(p, sharer{native: true}, true)
	if err != nil {
		return rows, err
	}
	for _, round := range []string{"2ms", "10ms", "20ms", "40ms"} {
		in, err := t.latencies(p, sharer{share: 50, round: round}, true)
		if err != nil {
			return rows, err
		}
		name := "small kernel beside a busy job, round of " + round
		rows = append(rows, latencyRow(name+", p50", native.median, in.median), latencyRow(name+", p99", native.high, in.high))
	}
	return rows, nil
}

// latency is what small kernels took, of several tries, in nanoseconds.
type latency struct{ median, high bench.Samples }

// latencyRow is a row of tries without ration and with it, if there are any. The two do not
// take turns, so that there is no noise to compare with.
func latencyRow(name string, native, in bench.Samples) Row {
	r := Row{Name: name, Unit: nanoseconds, Native: quantiles(native), Control: quantiles(native), Rounds: len(native)}
	if in == nil {
		return r
	}
	r.Ration = quantiles(in)
	r.More = Quantiles{r.Ration.Median - r.Native.Median, r.Ration.Low - r.Native.High, r.Ration.High - r.Native.Low}
	r.Ratio = r.Ration.Median / r.Native.Median
	return r
}

// latencies times small kernels of a job of one kind, beside another that is busy if there
// is to be one.
func (t *Trial) latencies(p pace, kind sharer, beside bool) (out latency, err error) {
	inner := t.newTrial(t.quick)
	defer inner.close()
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w %s", err, inner.logs())
		}
	}()
	a, b, err := inner.pair(p, kind, kind)
	if err != nil {
		return out, err
	}
	small := p
	small.rounds, small.ns = max(1, p.rounds/10), p.ns/10
	if err := setWork([]*Program{a}, launches, small); err != nil {
		return out, err
	}
	const each, pause = 1200 * time.Millisecond, 100 * time.Millisecond
	tries := t.rounds(3)
	at, err := instant(pause)
	if err != nil {
		return out, err
	}
	if beside {
		b.Tell("work %d %d 100", at, (time.Duration(tries+1) * (each + 2*pause)).Milliseconds())
	}
	if err := sleepUntil(at + int64(warmUp)); err != nil {
		return out, err
	}
	for range tries {
		if at, err = instant(0); err != nil {
			return out, err
		}
		n, err := a.ask(3, "latency %d %d", at, each.Milliseconds())
		if err != nil {
			return out, err
		}
		out.median, out.high = append(out.median, n[0]), append(out.high, n[1])
	}
	if beside {
		if _, err := readProgress([]*Program{b}, pause); err != nil {
			return out, err
		}
	}
	return out, inner.enforced()
}
