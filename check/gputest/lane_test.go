package gputest

import (
	"ration/check/bench"
	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/humanfmt"
	"ration/internal/region"
)

// fast lets the library move the memory of the trial's jobs itself.
func (t *trial) fast() {
	t.flags = append(t.flags, "--sleep-fast")
	if t.onStandIn() {
		t.env = append(t.env, "FAKEGPU_BLOCK=2m")
	}
}

// slowContexts lets contexts of the stand-in take time, as those of a real driver do.
func (t *trial) slowContexts() {
	if t.onStandIn() {
		t.env = append(t.env, "FAKEGPU_SLOW=cuCtxCreate:300000,cuCtxDestroy:50000")
	}
}

// sleepLane moves memory out and back in a job with --sleep-fast. The target is 5 s each for 40 GB.
func (t *trial) sleepLane(bytes uint64, rounds int) {
	const target = 5
	t.fast()
	t.open(bytes + 3*gib)
	p := t.startSleeper(bytes)
	var out, back bench.Samples
	for range rounds {
		out = append(out, t.moved("sleep", "--wake", "manual", p.job.Name))
		p.asleep()
		p.laneIs(abi.LaneOut)
		back = append(back, t.moved("wake", p.job.Name))
		p.laneIs(abi.LaneIn)
		p.whole()
		p.awake()
	}
	verdict := kept
	if spread(out).Median > target || spread(back).Median > target {
		verdict = missed
	}
	t.note("%s: out %.2f s, back %.2f s (target ≤ %d s each: %s)", humanfmt.Bytes(bytes), spread(out).Median, spread(back).Median, target, verdict)
	p.Tell("free")
	p.numbers(0)
	p.awake()
}

// laneIs checks where the memory is that the library of the job's program moves.
func (p *sleepingJob) laneIs(state int) {
	p.t.Helper()
	r, err := region.Open(p.job.Path, region.Options{NoCreate: true})
	p.t.must(err)
	defer r.Close()
	all, err := r.Sleepers()
	p.t.must(err)
	expect.Must(p.t, len(all) == 1, "processes", len(all))
	l, err := r.Lane(&all[0])
	p.t.must(err)
	expect.Equal(p.t, l.State(), state, "the lane of pid", p.pid)
}
