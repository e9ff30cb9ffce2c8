package gputest

import (
	"slices"
	"strconv"
	"testing"

	"ration/check/bench"
	"ration/check/expect"
	"ration/internal/humanfmt"
)

// TestCount compares the counts around and during a training loop, in one process and in
// eight.
func TestCount(t *testing.T) {
	for _, c := range []struct {
		name  string
		limit uint64
		n     int
		slack uint64 // see poolSlack
		env   []string
	}{
		{"training", 12 * gib, 1, 0, nil},
		{"training-x8", 48 * gib, 8, 0, nil},
		{"training-async", 12 * gib, 1, piece, torchAlloc("backend:cudaMallocAsync")},
	} {
		check(t, c.name, c.limit+gib, []string{torch}, func(t *trial) {
			t.poolSlack = c.slack
			t.train(c.limit, c.n, c.env)
		})
	}
}

// train compares the counts before, during and after a training loop, at the limit
// and after it, and while the loop runs.
func (t *trial) train(limit uint64, n int, env []string) {
	const layers, steps = 6, 60
	t.open(limit)
	t.startAll(n, env, t.script("train", strconv.Itoa(layers), strconv.Itoa(steps))...)
	t.waitAt("ready")
	o := t.observeCounts()
	defer o.stop()
	for _, name := range []string{"warm", "during", "after", "limit", "again"} {
		t.tellAll("")
		t.waitAt(name)
		all := t.compare(name)
		if name == "after" {
			var sum uint64
			for _, a := range all {
				sum += a.ration
			}
			t.note("held %s after training", humanfmt.Bytes(sum))
		}
	}
	t.checkObserved(o, n)
	t.checkRunning(o, n)
	t.noteDifference()
	t.finish()
}

// minReadings is the least number of readings of a working job on a real GPU.
const minReadings = 20

// checkRunning checks the differences that were read while programs worked. The two
// counts are not read at one instant, so outliers are left out.
func (t *trial) checkRunning(o *countObserver, n int) {
	all := bench.Samples(o.differences)
	slices.Sort(all)
	low, high := all.Percentile(5), all.Percentile(95)
	t.note("running %+.1f to %+.1f MiB in %s readings", low/float64(mib), high/float64(mib), humanfmt.Count(len(all)))
	tolerance := float64(max(toleranceBytes*uint64(n), o.mostDriver/toleranceShare))
	if low < -tolerance || high > tolerance {
		t.Fatalf("while running, ration's count differed from the driver's by %+.0f to %+.0f bytes", low, high)
	}
	expect.Must(t, t.onStandIn() || len(all) >= minReadings, "only", len(all), "readings were made while running, not", minReadings)
}

// TestMeminfo checks how much memory a program in a job sees.
func TestMeminfo(t *testing.T) {
	const limit = 10 * gib
	check(t, "nvidia-smi", 2*gib, []string{torch, "nvidia-smi"}, func(t *trial) {
		t.open(limit)
		s := t.start(nil, t.script("meminfo")...).at("read")
		for key, want := range map[string]uint64{"smi_total_mib": limit / mib, "torch_total": limit, "torch_props": limit} {
			got := s.bytes(t, key)
			expect.Must(t, got == want, key, got, "in the job, not", want)
		}
		used, counted := s.bytes(t, "smi_used_mib"), t.compare("read")[0].ration/mib
		expect.Must(t, used <= counted+toleranceBytes/mib && used+toleranceBytes/mib >= counted,
			"nvidia-smi in the job shows", used, "MiB used, ration counts", counted)
		t.note("%d MiB of %d", used, limit/mib)
		t.finish()
	})
	check(t, "jax-preallocation", limit, []string{jax}, func(t *trial) {
		t.open(limit)
		bytes := t.start(nil, t.script("meminfo", "jax")...).at("read").bytes(t, "bytes_limit")
		t.note("JAX reserved %s of %s", humanfmt.Bytes(bytes), humanfmt.Bytes(limit))
		// Three quarters of what is free when it starts, and at most of the limit.
		expect.Must(t, bytes <= limit*3/4 && bytes >= limit/2, "JAX reserved too much or too little")
		t.compare("read")
		t.noteDifference()
		t.finish()
	})
}
