package gputest

import (
	"math"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/node"
	"ration/internal/usage"
	"ration/machine"
)

// TestUsage compares the GPU time of the accounts with known work: kernels of equal length, of
// which each program counts what is done, against what one does alone. Without a GPU
// shim/test/compute_turns.c does so, on a clock of its own.
func TestUsage(t *testing.T) {
	// A cap of 100 % makes the library measure, and nothing wait.
	shares := []sharer{{share: 10, cap: 100}, {share: 20, cap: 100}, {share: 30, cap: 100}, {share: 40, cap: 100}}
	for _, c := range []struct {
		name string
		run  func(*trial)
	}{
		{"alone", func(t *trial) { t.checkUsage(launches, sharer{share: 10, cap: 100}) }},
		{"shares-launches", func(t *trial) { t.checkUsage(launches, shares...) }},
		{"shares-graphs", func(t *trial) { t.checkUsage(graphs, shares...) }},
		{"without-shares", func(t *trial) { t.checkUsage(launches, sharer{cap: 100}, sharer{cap: 100}) }},
		{"cap-alone", func(t *trial) { t.checkUsage(launches, sharer{cap: 30}) }},
	} {
		check(t, c.name, 50*gib, []string{real}, c.run)
	}
}

// usageError is by how much of the true time the account of a job may be wrong.
const usageError = 0.02

// checkUsage checks the accounts of jobs that do the same work side by side. It looks at them as an
// agent does.
func (t *trial) checkUsage(w work, jobs ...sharer) {
	p, length := t.pace(w), 8*time.Second
	var programs []*program
	for _, j := range jobs {
		programs = append(programs, t.joinBusy(j, w, p)...)
	}
	step := 100 * time.Millisecond
	at := t.beginTogether(programs, warmUp+length+time.Second, step)
	meter := usage.NewMeter()
	for passed := warmUp; passed <= warmUp+length; passed += time.Second {
		t.sleepUntil(at + int64(passed))
		var all machine.Machine
		for _, j := range t.joined {
			all.Jobs = append(all.Jobs, node.ReadJob(j, node.Options{ReadOnly: true}))
			t.must(all.Jobs[len(all.Jobs)-1].Err())
		}
		meter.Look(&all, time.Now())
	}
	period := meter.Take()
	accounts := map[string]usage.Sums{}
	for s, sums := range period.Sums {
		accounts[s.Job] = accounts[s.Job].Plus(sums)
	}
	largest := 0.0
	for i, j := range t.joined {
		worked := programs[i].progress(step).perSecond(warmUp, warmUp+length) / p.perSecond
		sums := accounts[j.Name]
		counted := float64(sums.Measured) / float64(period.Watched)
		t.note("%d%%: worked %.2f %%, account %.2f %%", jobs[i].share, 100*worked, 100*counted)
		if sums.Shared > 0 {
			t.note("a bound")
		}
		expect.True(t, sums.Shared == 0, "the account of a job is only a bound", sums)
		largest = max(largest, math.Abs(counted/worked-1))
	}
	if largest > usageError {
		t.Errorf("an account is wrong by %.1f %% of the work", 100*largest)
	}
}
