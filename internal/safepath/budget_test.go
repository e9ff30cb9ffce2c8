package safepath

import (
	"testing"
	"time"

	"ration/check/expect"
)

const ms = time.Millisecond

func TestBudget(t *testing.T) {
	for name, c := range map[string]struct {
		after, worked time.Duration
		left          bool
	}{
		"at the beginning":           {0, 0, true},
		"with much work in time":     {99 * ms, 5000 * ms, true}, // of other threads
		"late, after all its work":   {100 * ms, 100 * ms, false},
		"late, having waited":        {399 * ms, 99 * ms, true},
		"far too late":               {400 * ms, 0, false},
		"late, with a bit too much":  {101 * ms, 101 * ms, false},
		"in time, to the last":       {100*ms - 1, 100 * ms, true},
		"late by one, without works": {100 * ms, 0, true},
	} {
		now, done := time.Unix(1, 0), time.Hour
		clock := Clock{func() time.Time { return now }, func() time.Duration { return done }}
		p := clock.For(100 * ms)
		part, shorter := p.Part(time.Minute), p.Part(ms)
		now, done = now.Add(c.after), done+c.worked
		expect.True(t, p.Left() == c.left && part.Left() == c.left, name, p.Left(), "and a part", part.Left())
		expect.True(t, c.after <= 4*ms || !shorter.Left(), name, "a short part is not spent")
		expect.True(t, p.Again(ms).Left(), name, "there is none for another")
		clock.Worked = nil
		now = time.Unix(1, 0)
		p = clock.For(100 * ms)
		now = now.Add(c.after)
		expect.Equal(t, p.Left(), c.after < 100*ms, name, "by the time alone")
	}
	expect.True(t, !(Budget{}).Left(), "the zero value is not spent")
}

// The machine's clock counts what this process does.
func TestReal(t *testing.T) {
	before := worked()
	for p := RealClock.For(ms); p.Left(); {
	}
	expect.True(t, worked() > before, "no time was used")
}
