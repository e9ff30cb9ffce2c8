package gputest

import (
	"slices"
	"testing"
	"time"
)

// TestPriority checks how long a small kernel of a job of high priority takes beside busy
// jobs of low priority, and what these get done.
func TestPriority(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(*trial)
	}{
		{"one", func(t *trial) {
			t.checkPriority(1, sharer{priority: "low"}, 300*time.Microsecond, 450*time.Microsecond)
		}},
		// After a sleep, kernels of the busy job are not interrupted: it waits for part of one.
		{"slept", func(t *trial) {
			t.checkPriority(1, sharer{priority: "low", slept: true}, 450*time.Microsecond, 600*time.Microsecond)
		}},
		{"three", func(t *trial) {
			t.checkPriority(3, sharer{priority: "low"}, 600*time.Microsecond, 1200*time.Microsecond)
		}},
		// A job of low priority that has the device for itself, and three of them.
		{"alone", func(t *trial) {
			got := t.share(launches, short(t, time.Second, 5*time.Second), sharer{priority: "low"})
			t.note("one of low priority alone: %v", got)
			if got.together < 99 {
				t.Fatalf("a job of low priority alone did %.1f %%", got.together)
			}
			native := t.share(launches, short(t, time.Second, 5*time.Second), sharer{native: true}, sharer{native: true}, sharer{native: true})
			low := t.share(launches, short(t, time.Second, 5*time.Second), sharer{priority: "low"}, sharer{priority: "low"}, sharer{priority: "low"})
			t.note("three together: native %v, of low priority %v", native, low)
			if low.together < native.together-1 {
				t.Fatalf("three jobs of low priority did %.1f %%, three programs without ration %.1f %%", low.together, native.together)
			}
		}},
		{"quiet", (*trial).checkQuiet},
	} {
		check(t, c.name, 24*gib, []string{real}, c.run)
	}
}

// checkPriority checks what a small kernel takes beside so many busy jobs of low priority, in the
// median and at the 99th percentile, and that these get 98 % of what they do without ration done,
// which is measured before it.
func (t *trial) checkPriority(lows int, low sharer, median, high time.Duration) {
	native := t.besideBusy(lows, launches, sharer{native: true}, sharer{native: true})
	t.note("native: %v", native)
	got := t.besideBusy(lows, launches, low, sharer{priority: "high"})
	t.note("priority: %v", got)
	least := 0.98 * native.busy.together
	if got.median > median || got.high > high || got.busy.together < least {
		t.Fatalf("with priorities %v; at most %v and %v, at least %.1f %% are wanted; without %v", got, median, high, least, native)
	}
}

// checkQuiet checks that a job of high priority does as much beside one of low priority that has a context and no work,
// and beside one that sleeps, as alone. The three take turns.
func (t *trial) checkQuiet() {
	high := sharer{priority: "high"}
	beside := []struct {
		what string
		low  []sharer
		did  []float64 // per cent
	}{
		{"alone", nil, nil},
		{"beside one without work", []sharer{{priority: "low", idle: 1}}, nil},
		{"beside one that sleeps", []sharer{{priority: "low", idle: 1, asleep: true}}, nil},
	}
	for range short(t, 1, 5) {
		for i := range beside {
			got := t.share(launches, short(t, time.Second, 2*time.Second), append(beside[i].low, high)...)
			beside[i].did = append(beside[i].did, got.together)
		}
	}
	median := func(all []float64) float64 {
		slices.Sort(all)
		return all[len(all)/2]
	}
	alone := median(beside[0].did)
	t.note("one of high priority alone %.2f %%", alone)
	for _, b := range beside[1:] {
		part := 100 * median(b.did) / alone
		t.note("%s %.2f %% of that", b.what, part)
		if part < 99.5 {
			t.Fatalf("a job of high priority did %.2f %% %s (%.2f), of what it did alone (%.2f)", part, b.what, b.did, beside[0].did)
		}
	}
}
