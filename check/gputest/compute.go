package gputest

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"ration/internal/humanfmt"
	"ration/internal/reap"
	"ration/machine"
)

// computeChecks check shares of the device's time and caps on it. The truth is fixed work
// that was done, not what any counter says.
func computeChecks() []Check {
	check := func(name string, run func(*Trial) error, needs ...string) Check {
		return Check{Group: "compute", Name: name, Needs: append([]string{real}, needs...), Room: 24 * gib, run: run}
	}
	return []Check{
		check("shares-launches", func(t *Trial) error { return t.checkExact(launches) }),
		check("shares-graphs", func(t *Trial) error { return t.checkExact(graphs) }),
		check("shares-torch", (*Trial).checkTorchShares, torch),
		check("together", (*Trial).checkTogether),
		check("eight", (*Trial).checkEight),
		check("weights", (*Trial).checkWeights),
		check("processes", (*Trial).checkProcesses),
		check("idle", (*Trial).checkIdle),
		check("live", (*Trial).checkLive),
		check("cap-launches", func(t *Trial) error { return t.checkCaps(launches, 5*time.Second) }),
		check("cap-graphs", func(t *Trial) error { return t.checkCaps(graphs, 5*time.Second) }),
		check("cap-long-kernels", func(t *Trial) error { return t.checkCaps(longKernels, 20*time.Second) }),
		check("cap-torch", (*Trial).checkTorchCaps, torch),
		check("kills", (*Trial).checkKills),
	}
}

// length returns how long programs work, shorter in a smoke run.
func (t *Trial) length(full time.Duration) time.Duration {
	if t.quick {
		return time.Second
	}
	return full
}

// checkExact checks that shares are what was asked for.
func (t *Trial) checkExact(w work) error {
	for _, shares := range [][]int{{30, 70}, {10, 90}, {20, 30, 50}} {
		var jobs []sharer
		var want []float64
		for _, s := range shares {
			jobs, want = append(jobs, sharer{share: s}), append(want, float64(s))
		}
		got, err := t.share(w, t.length(5*time.Second), jobs...)
		if err != nil {
			return err
		}
		if err := t.checkShares("", got, 2, want...); err != nil {
			return err
		}
	}
	return nil
}

// checkTogether checks that two halves get more done with long slices than without ration.
func (t *Trial) checkTogether() error {
	native, err := t.share(launches, t.length(5*time.Second), sharer{native: true}, sharer{native: true})
	if err != nil {
		return err
	}
	t.note("native %s, together %.1f %%", percents(native.shares), native.together)
	got, err := t.share(launches, t.length(5*time.Second), sharer{share: 50}, sharer{share: 50})
	if err != nil {
		return err
	}
	if err := t.checkShares("", got, 2, 50, 50); err != nil {
		return err
	}
	if got.together < 96 || got.together < native.together+4 {
		return fmt.Errorf("two halves together did %.1f %% of one alone, and native ones %.1f %%", got.together, native.together)
	}
	return nil
}

func percents(all []float64) string {
	var out []string
	for _, p := range all {
		out = append(out, fmt.Sprintf("%.1f", p))
	}
	return strings.Join(out, "/")
}

// checkEight checks that eight small shares lose no more to switching than without ration.
func (t *Trial) checkEight() error {
	jobs, want := make([]sharer, 8), make([]float64, 8)
	for i := range jobs {
		jobs[i].native = true
	}
	native, err := t.share(launches, t.length(4*time.Second), jobs...)
	if err != nil {
		return err
	}
	t.note("native %s, together %.1f %%", percents(native.shares), native.together)
	for i := range jobs {
		jobs[i], want[i] = sharer{share: 12}, 12
	}
	got, err := t.share(launches, t.length(4*time.Second), jobs...)
	if err != nil {
		return err
	}
	if err := t.checkShares("", got, 2, want...); err != nil {
		return err
	}
	if got.together < native.together {
		return fmt.Errorf("eight shares together did %.1f %% of one alone, and native programs %.1f %%", got.together, native.together)
	}
	return nil
}

// checkWeights checks shares that add up to more than the whole.
func (t *Trial) checkWeights() error {
	for _, shares := range [][2]int{{50, 100}, {80, 100}} {
		got, err := t.share(launches, t.length(4*time.Second), sharer{share: shares[0]}, sharer{share: shares[1]})
		if err != nil {
			return err
		}
		if err := t.checkShares("", got, 2, float64(shares[0]), float64(shares[1])); err != nil {
			return err
		}
	}
	return nil
}

// checkProcesses checks that a job of four processes has one share, also when three of
// them have no work.
func (t *Trial) checkProcesses() error {
	for _, idle := range []int{0, 3} {
		got, err := t.share(launches, t.length(5*time.Second), sharer{share: 50, processes: 4, idle: idle}, sharer{share: 50})
		if err != nil {
			return err
		}
		if err := t.checkShares(fmt.Sprintf("4 processes, %d idle, and 1: ", idle), got, 3, 50, 50); err != nil {
			return err
		}
	}
	return nil
}

// enforced checks that every process of the trial's jobs has its slice.
func (t *Trial) enforced() error {
	for _, j := range t.joined {
		s := reap.ReadJob(j, reap.Options{ReadOnly: true})
		if s.Err() != nil {
			return s.Err()
		}
		for _, p := range s.Processes {
			for _, h := range p.Holdings {
				if h.Compute != nil && h.Compute.State == machine.NotEnforced {
					return fmt.Errorf("the share of pid %d is not enforced: %s", p.PID, h.Compute.Reason)
				}
			}
		}
	}
	return nil
}

// defaultRound is the round without --compute-round.
const defaultRound = 20 * time.Millisecond

// checkIdle checks that a job has all of the device while the other has no work, and that
// the other has its share back at once when it has.
func (t *Trial) checkIdle() error {
	p, err := t.pace(launches)
	if err != nil {
		return err
	}
	length, step := t.length(4*time.Second), 10*time.Millisecond
	busy, idle, err := t.pair(p, sharer{share: 30}, sharer{share: 70})
	if err != nil {
		return err
	}
	at, err := beginTogether([]*Program{busy}, warmUp+2*length, step)
	if err != nil {
		return err
	}
	back := at + int64(warmUp+length)
	idle.Tell("work %d %d %d", back, length.Milliseconds(), step.Milliseconds())
	all, err := readProgress([]*Program{busy, idle}, step)
	if err != nil {
		return err
	}
	alone := 100 * all[0].perSecond(warmUp, warmUp+length) / p.perSecond
	t.note("%.1f %% of alone while the other is idle", alone)
	t.record("alone_milli", int64(1000*alone))
	// From the first step on that it has work in.
	const soon = 500 * time.Millisecond
	got := ratios([]float64{all[0].perSecond(warmUp+length, warmUp+length+soon), all[1].perSecond(0, soon)}, p.perSecond)
	t.note("the first of the other after %s, its share of the first half second %.1f %%", humanfmt.Duration(all[1].first), got.shares[1])
	t.record("first_us", all[1].first.Microseconds())
	switch {
	case alone < 99:
		return errors.New("a job that was alone did not have all of the device")
	case all[1].first > defaultRound+10*time.Millisecond:
		return fmt.Errorf("a job waited %s for its turn, and a round is %s", humanfmt.Duration(all[1].first), humanfmt.Duration(defaultRound))
	case math.Abs(got.shares[1]-70) > 5:
		return fmt.Errorf("a job that came back had %.1f %%, not its share", got.shares[1])
	}
	return nil
}

// pair starts two jobs with one program each, which are ready to work.
func (t *Trial) pair(p pace, first, second sharer) (a, b *Program, err error) {
	var both []*Program
	for _, j := range []sharer{first, second} {
		all, err := t.join(j, "init", t.native("busy")...)
		if err != nil {
			return nil, nil, err
		}
		both = append(both, all...)
	}
	return both[0], both[1], setWork(both, launches, p)
}

// checkLive checks that changed shares hold soon.
func (t *Trial) checkLive() error {
	p, err := t.pace(launches)
	if err != nil {
		return err
	}
	a, b, err := t.pair(p, sharer{share: 10}, sharer{share: 90})
	if err != nil {
		return err
	}
	length, step := t.length(3*time.Second), 50*time.Millisecond
	at, err := beginTogether([]*Program{a, b}, warmUp+2*length, step)
	if err != nil {
		return err
	}
	if err := sleepUntil(at + int64(warmUp+length)); err != nil {
		return err
	}
	for i, share := range []int{90, 10} {
		if err := t.setCompute(t.joined[i].Name, share); err != nil {
			return err
		}
	}
	changed, err := instant(0)
	if err != nil {
		return err
	}
	all, err := readProgress([]*Program{a, b}, step)
	if err != nil {
		return err
	}
	between := func(from, until time.Duration) shared {
		return ratios([]float64{all[0].perSecond(from, until), all[1].perSecond(from, until)}, p.perSecond)
	}
	if err := t.checkShares("before: ", between(warmUp, warmUp+length), 2, 10, 90); err != nil {
		return err
	}
	// In steps of 50 ms, from the first whole one after the change.
	since := time.Duration(changed-at).Truncate(step) + step
	settled := time.Duration(-1)
	for after := time.Duration(0); after <= time.Second && settled < 0; after += step {
		if math.Abs(between(since+after, since+after+4*step).shares[0]-90) <= 5 {
			settled = after
		}
	}
	t.note("new shares after %s", humanfmt.Duration(settled))
	t.record("settled_ms", settled.Milliseconds())
	if settled < 0 || settled > 200*time.Millisecond {
		return errors.New("new shares did not hold within 0.2 s")
	}
	return t.checkShares("after: ", between(since+settled, warmUp+2*length), 2, 90, 10)
}

// sleepUntil sleeps until a nanosecond of the monotonic clock.
func sleepUntil(at int64) error {
	now, err := instant(0)
	if err == nil {
		time.Sleep(time.Duration(at - now))
	}
	return err
}

// caps are the caps that are checked.
func (t *Trial) caps() []int {
	if t.quick {
		return []int{50}
	}
	return []int{10, 50, 90}
}

// checkCaps checks that a job alone has what its cap allows, and no more.
func (t *Trial) checkCaps(w work, length time.Duration) error {
	delete(t.alone, w) // a cap is of what the device does now, not of what it did minutes ago
	for _, most := range t.caps() {
		got, err := t.share(w, t.length(length), sharer{cap: most})
		if err != nil {
			return err
		}
		if err := t.checkCap(most, got.together); err != nil {
			return err
		}
	}
	return nil
}

// checkCap compares what a job had with its cap.
func (t *Trial) checkCap(most int, had float64) error {
	t.note("≤%d: %.1f", most, had)
	t.record("worst_milli", int64(1000*(had-float64(most))))
	if math.Abs(had-float64(most)) > 2 {
		return fmt.Errorf("with a cap of %d %% a job had %.1f %%", most, had)
	}
	return nil
}

// trainTogether has jobs train side by side, and returns the steps a second of each.
func (t *Trial) trainTogether(length time.Duration, jobs ...sharer) (rates []float64, err error) {
	inner := t.newTrial(t.quick)
	defer inner.close()
	var all []*Program
	for _, j := range jobs {
		some, err := inner.join(j, "init full", t.script("timing")...)
		if err != nil {
			return nil, fmt.Errorf("%w %s", err, inner.logs())
		}
		all = append(all, some...)
	}
	at, err := instant(200 * time.Millisecond)
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		p.Tell("work %d %d", at, length.Milliseconds())
	}
	for _, p := range all {
		n, err := p.numbers(2)
		if err != nil {
			return nil, fmt.Errorf("%w %s", err, inner.logs())
		}
		rates = append(rates, n[0])
	}
	return rates, inner.enforced()
}

// checkTorchShares checks shares of training in PyTorch.
func (t *Trial) checkTorchShares() error {
	length := t.length(8 * time.Second)
	alone, err := t.trainTogether(length/2, sharer{native: true})
	if err != nil {
		return err
	}
	native, err := t.trainTogether(length/2, sharer{native: true}, sharer{native: true})
	if err != nil {
		return err
	}
	n := ratios(native, alone[0])
	t.note("native %s, together %.1f %%", percents(n.shares), n.together)
	if n.together > 105 {
		return fmt.Errorf("%w: two trainings together did %.1f %% of one alone, so one does not fill the device", ErrUnsuited, n.together)
	}
	rates, err := t.trainTogether(length, sharer{share: 30}, sharer{share: 70})
	if err != nil {
		return err
	}
	return t.checkShares("", ratios(rates, alone[0]), 3, 30, 70)
}

// checkTorchCaps checks caps on training in PyTorch.
func (t *Trial) checkTorchCaps() error {
	length := t.length(5 * time.Second)
	alone, err := t.trainTogether(length, sharer{native: true})
	if err != nil {
		return err
	}
	for _, most := range t.caps() {
		rates, err := t.trainTogether(length, sharer{cap: most})
		if err != nil {
			return err
		}
		if err := t.checkCap(most, 100*rates[0]/alone[0]); err != nil {
			return err
		}
	}
	return nil
}

// checkKills kills programs of a job again and again, at work and while they wait for their
// cap, beside another job, which must not stall for longer than a round and a little.
func (t *Trial) checkKills() error {
	p, err := t.pace(launches)
	if err != nil {
		return err
	}
	kills, native := 200, 40
	if t.quick {
		kills, native = 8, 8
	}
	before, err := t.killBeside(p, sharer{native: true}, sharer{native: true}, native)
	if err != nil {
		return err
	}
	stall, err := t.killBeside(p, sharer{share: 50}, sharer{share: 20, cap: 20}, kills)
	if err != nil {
		return err
	}
	t.note("%d killed, the other job stalled for %s at most; %s with %d native ones", kills, humanfmt.Duration(stall), humanfmt.Duration(before), native)
	t.record("stall_us", stall.Microseconds())
	t.record("kills", int64(kills))
	if stall > defaultRound+20*time.Millisecond {
		return fmt.Errorf("a neighbour stalled for %s", humanfmt.Duration(stall))
	}
	return nil
}

// killBeside kills n programs of one kind beside a steady one, and returns how long that
// went without any of its work done. Then it checks that nothing is left of the killed.
func (t *Trial) killBeside(p pace, steady, killed sharer, n int) (time.Duration, error) {
	inner := t.newTrial(t.quick)
	defer inner.close()
	stall, err := inner.kills(p, steady, killed, n)
	if err != nil {
		err = fmt.Errorf("%w %s", err, inner.logs())
	}
	return stall, err
}

func (t *Trial) kills(p pace, steady, killed sharer, n int) (time.Duration, error) {
	const together, every = 4, 100 * time.Millisecond
	all, err := t.join(steady, "init", t.native("busy")...)
	if err != nil {
		return 0, err
	}
	if err := setWork(all, launches, p); err != nil {
		return 0, err
	}
	victim := func() (*Program, error) {
		v, err := t.start(nil, t.native("busy")...)
		if err == nil {
			v.Tell("init")
			v.Tell("size %.0f %.0f", p.rounds, p.ns)
			v.Tell("work 1 600000 1000") // from the past until it is killed
		}
		return v, err
	}
	var victims []*Program
	if victims, err = t.join(killed, "init", t.native("busy")...); err != nil { // also stays, so that the job does
		return 0, err
	}
	for len(victims) <= together {
		v, err := victim()
		if err != nil {
			return 0, err
		}
		victims = append(victims, v)
	}
	length := time.Duration(n+10) * every * 3 / 2
	if _, err := beginTogether(all, length, 100*time.Millisecond); err != nil {
		return 0, err
	}
	for range n {
		time.Sleep(every/2 + rand.N(every))
		i := 1 + rand.IntN(together)
		if err := victims[i].Kill(); err != nil {
			return 0, err
		}
		victims[i].Close()
		t.programs = slices.DeleteFunc(t.programs, func(p *Program) bool { return p == victims[i] })
		if victims[i], err = victim(); err != nil {
			return 0, err
		}
	}
	done, err := readProgress(all, 100*time.Millisecond)
	if err != nil {
		return 0, err
	}
	for _, v := range victims {
		if err := v.Kill(); err != nil {
			return 0, err
		}
	}
	if killed.native {
		return done[0].gap, nil
	}
	return done[0].gap, t.checkNothingLeft()
}
