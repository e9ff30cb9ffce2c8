package gputest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os/exec"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/humanfmt"
)

// TestCompute checks shares of the device's time and caps on it. The truth is fixed work
// that was done, not what any counter says.
func TestCompute(t *testing.T) {
	for _, c := range []struct {
		name  string
		run   func(*trial)
		needs []string
	}{
		{"shares-launches", func(t *trial) { t.checkExact(launches) }, nil},
		{"shares-graphs", func(t *trial) { t.checkExact(graphs) }, nil},
		{"shares-torch", (*trial).checkTorchShares, []string{torch}},
		// Two halves get more done with long slices than without ration.
		{"together", func(t *trial) { t.checkBesideNative(2, 50, 96, 4) }, nil},
		// Eight small shares lose no more to switching than without ration.
		{"eight", func(t *trial) { t.checkBesideNative(8, 12, 0, 0) }, nil},
		// Shares that add up to more than the whole are weights.
		{"weights", func(t *trial) {
			t.checkSharing("", launches, 4*time.Second, 2, sharer{share: 50}, sharer{share: 100})
			t.checkSharing("", launches, 4*time.Second, 2, sharer{share: 80}, sharer{share: 100})
		}, nil},
		// A job of four processes has one share, also when three of them have no work.
		{"processes", func(t *trial) {
			for _, idle := range []int{0, 3} {
				t.checkSharing(fmt.Sprintf("4 processes, %d idle, and 1: ", idle), launches, 5*time.Second, 3,
					sharer{share: 50, processes: 4, idle: idle}, sharer{share: 50})
			}
		}, nil},
		{"slept", (*trial).checkSlept, nil},
		{"idle", (*trial).checkIdle, nil},
		{"live", (*trial).checkLive, nil},
		{"cap-launches", func(t *trial) { t.checkCaps(launches, 5*time.Second) }, nil},
		{"cap-graphs", func(t *trial) { t.checkCaps(graphs, 5*time.Second) }, nil},
		{"cap-long-kernels", func(t *trial) { t.checkCaps(longKernels, 20*time.Second) }, nil},
		{"cap-torch", (*trial).checkTorchCaps, []string{torch}},
		{"kills", (*trial).checkKills, nil},
	} {
		check(t, c.name, 24*gib, append([]string{real}, c.needs...), c.run)
	}
}

// checkSharing checks that jobs have their shares, within so many points.
func (t *trial) checkSharing(what string, w work, length time.Duration, points float64, jobs ...sharer) shared {
	got := t.share(w, short(t, time.Second, length), jobs...)
	var want []float64
	for _, j := range jobs {
		want = append(want, float64(j.share))
	}
	t.checkShares(what, got, points, want...)
	return got
}

// checkExact checks that shares are what was asked for.
func (t *trial) checkExact(w work) {
	for _, shares := range [][]int{{30, 70}, {10, 90}, {20, 30, 50}} {
		var jobs []sharer
		for _, s := range shares {
			jobs = append(jobs, sharer{share: s})
		}
		t.checkSharing("", w, 5*time.Second, 2, jobs...)
	}
}

// checkSlept checks that jobs have their slices after a sleep, in which the driver forgets them: by a share, and libcuda's
// own without one. It notes what a small kernel waits for a long one of such a job: the driver does not interrupt it.
func (t *trial) checkSlept() {
	t.checkSharing("after a sleep, ", launches, 5*time.Second, 2, sharer{share: 30, slept: true}, sharer{share: 70})
	got := t.share(launches, short(t, time.Second, 5*time.Second), sharer{slept: true}, sharer{})
	t.checkShares("after a sleep, without shares, ", got, 3, 50, 50)
	t.note("after a sleep, kernels of 50 ms: %v", t.besideBusy(1, work{us: 50_000}, sharer{slept: true}, sharer{}))
}

// checkBesideNative checks that n jobs of a share get at least so many per cent done of
// what one does alone, and so many points more than as many programs without ration.
func (t *trial) checkBesideNative(n, share int, least, more float64) {
	jobs := make([]sharer, n)
	for i := range jobs {
		jobs[i] = sharer{native: true}
	}
	native := t.share(launches, short(t, time.Second, 5*time.Second), jobs...)
	t.note("native %v", native)
	for i := range jobs {
		jobs[i] = sharer{share: share}
	}
	if got := t.checkSharing("", launches, 5*time.Second, 2, jobs...); got.together < least || got.together < native.together+more {
		t.Fatalf("%d jobs together did %.1f %% of one alone, and native programs %.1f %%", n, got.together, native.together)
	}
}

// defaultRound is the round without --compute-round.
const defaultRound = 20 * time.Millisecond

// checkIdle checks that a job has all of the device while the other has no work, and that
// the other has its share back at once when it has.
func (t *trial) checkIdle() {
	p := t.pace(launches)
	length, step := short(t, time.Second, 4*time.Second), 10*time.Millisecond
	busy, idle := t.joinBusy(sharer{share: 30}, launches, p)[0], t.joinBusy(sharer{share: 70}, launches, p)[0]
	back := t.beginTogether([]*program{busy}, warmUp+2*length, step) + int64(warmUp+length)
	idle.Tell("work %d %d %d", back, length.Milliseconds(), step.Milliseconds())
	first, second := busy.progress(step), idle.progress(step)
	alone := 100 * first.perSecond(warmUp, warmUp+length) / p.perSecond
	t.note("%.1f %% of alone while the other is idle", alone)
	// From the first step on that it has work in.
	const soon = 500 * time.Millisecond
	got := ratios([]float64{first.perSecond(warmUp+length, warmUp+length+soon), second.perSecond(0, soon)}, p.perSecond)
	t.note("the first of the other after %s, its share of the first half second %.1f %%", humanfmt.Duration(second.first), got.shares[1])
	switch {
	case alone < 99:
		t.Fatalf("a job that was alone did not have all of the device")
	case second.first > defaultRound+10*time.Millisecond:
		t.Fatalf("a job waited %s for its turn, and a round is %s", humanfmt.Duration(second.first), humanfmt.Duration(defaultRound))
	case math.Abs(got.shares[1]-70) > 5:
		t.Fatalf("a job that came back had %.1f %%, not its share", got.shares[1])
	}
}

// checkLive checks that changed shares hold soon.
func (t *trial) checkLive() {
	p := t.pace(launches)
	both := append(t.joinBusy(sharer{share: 10}, launches, p), t.joinBusy(sharer{share: 90}, launches, p)...)
	length, step := short(t, time.Second, 3*time.Second), 50*time.Millisecond
	at := t.beginTogether(both, warmUp+2*length, step)
	t.sleepUntil(at + int64(warmUp+length))
	for i, share := range []int{90, 10} {
		cmd := exec.Command(t.file("ration"), "limit", t.joined[i].Name, "--compute", fmt.Sprint(share))
		cmd.Env = t.environ()
		out, err := cmd.CombinedOutput()
		expect.OK(t, err, "changing a share", out)
	}
	changed := t.instant(0)
	first, second := both[0].progress(step), both[1].progress(step)
	between := func(from, until time.Duration) shared {
		return ratios([]float64{first.perSecond(from, until), second.perSecond(from, until)}, p.perSecond)
	}
	t.checkShares("before: ", between(warmUp, warmUp+length), 2, 10, 90)
	// In steps of 50 ms, from the first whole one after the change.
	since := time.Duration(changed-at).Truncate(step) + step
	settled := time.Duration(-1)
	for after := time.Duration(0); after <= time.Second && settled < 0; after += step {
		if math.Abs(between(since+after, since+after+4*step).shares[0]-90) <= 5 {
			settled = after
		}
	}
	t.note("new shares after %s", humanfmt.Duration(settled))
	expect.Must(t, settled >= 0 && settled <= 200*time.Millisecond, "new shares did not hold within 0.2 s")
	t.checkShares("after: ", between(since+settled, warmUp+2*length), 2, 90, 10)
}

// sleepUntil sleeps until a nanosecond of the monotonic clock.
func (t *trial) sleepUntil(at int64) { time.Sleep(time.Duration(at - t.instant(0))) }

// caps are the caps that are checked.
func (t *trial) caps() []int { return short(t, []int{50}, []int{10, 50, 90}) }

// checkCaps checks that a job alone has what its cap allows, and no more.
func (t *trial) checkCaps(w work, length time.Duration) {
	delete(t.alone, w) // a cap is of what the device does now, not of what it did minutes ago
	for _, most := range t.caps() {
		t.checkCap(most, t.share(w, short(t, time.Second, length), sharer{cap: most}).together)
	}
}

// trainTogether has jobs train side by side, and returns the steps a second of each.
func (t *trial) trainTogether(length time.Duration, jobs ...sharer) (rates []float64) {
	t.inside(func(t *trial) {
		for _, j := range jobs {
			t.join(j, "init full", t.script("timing")...)
		}
		t.tellAll("work %d %d", t.instant(200*time.Millisecond), length.Milliseconds())
		for _, p := range t.programs {
			rates = append(rates, p.numbers(2)[0])
		}
		t.enforced()
	})
	return rates
}

// checkTorchShares checks shares of training in PyTorch.
func (t *trial) checkTorchShares() {
	length := short(t, time.Second, 8*time.Second)
	alone := t.trainTogether(length/2, sharer{native: true})[0]
	native := ratios(t.trainTogether(length/2, sharer{native: true}, sharer{native: true}), alone)
	t.note("native %v", native)
	if native.together > 105 {
		t.Skipf("two trainings together did %.1f %% of one alone, so one does not fill the device", native.together)
	}
	t.checkShares("", ratios(t.trainTogether(length, sharer{share: 30}, sharer{share: 70}), alone), 3, 30, 70)
}

// checkTorchCaps checks caps on training in PyTorch.
func (t *trial) checkTorchCaps() {
	length := short(t, time.Second, 5*time.Second)
	alone := t.trainTogether(length, sharer{native: true})[0]
	for _, most := range t.caps() {
		t.checkCap(most, 100*t.trainTogether(length, sharer{cap: most})[0]/alone)
	}
}

// checkKills kills programs of a job again and again, at work and while they wait for their
// cap, beside another job, which must not stall for longer than a round and a little.
func (t *trial) checkKills() {
	kills, native := short(t, 8, 200), short(t, 8, 40)
	before := t.killBeside(sharer{native: true}, sharer{native: true}, native)
	stall := t.killBeside(sharer{share: 50}, sharer{share: 20, cap: 20}, kills)
	t.note("%d killed, the other job stalled for %s at most; %s with %d native ones", kills, humanfmt.Duration(stall), humanfmt.Duration(before), native)
	expect.Must(t, stall <= defaultRound+20*time.Millisecond, "a neighbour stalled for", humanfmt.Duration(stall))
}

// killBeside kills n programs of one kind beside a steady one, and returns how long that
// went without any of its work done. Then it checks that nothing is left of the killed.
func (t *trial) killBeside(steady, killed sharer, n int) (stall time.Duration) {
	const together, every = 4, 100 * time.Millisecond
	p := t.pace(launches)
	t.inside(func(t *trial) {
		all := t.joinBusy(steady, launches, p)
		t.join(killed, "init", t.native("busy")...) // stays, so that the job does
		victim := func() *program {
			v := t.start(nil, t.native("busy")...)
			v.Tell("init")
			v.Tell("size %.0f %.0f", p.rounds, p.ns)
			v.Tell("work 1 600000 1000") // from the past until it is killed
			return v
		}
		var victims [together]*program
		for i := range victims {
			victims[i] = victim()
		}
		t.beginTogether(all, time.Duration(n+10)*every*3/2, every)
		for range n {
			time.Sleep(every/2 + rand.N(every))
			i := rand.IntN(together)
			t.killAndForget(victims[i])
			victims[i] = victim()
		}
		stall = all[0].progress(every).gap
		for _, p := range t.programs[1:] { // all but the steady one
			p.kill()
		}
		if !killed.native {
			t.checkNothingLeft()
		}
	})
	return stall
}
