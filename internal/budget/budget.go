// Package budget bounds how much time a process spends on files that a tenant can make slow.
//
// It counts the processor time of this process as well as the time that passes. On a busy machine a
// process waits for a processor; in time alone, its budget would be spent before it has asked
// anything.
package budget

import (
	"time"

	"golang.org/x/sys/unix"
)

// Budget is spent after a time. If this process had less processor time than that meanwhile, it is
// spent when it has had as much, or after four times as long. The zero value is spent.
type Budget struct {
	clock  Clock
	end    time.Time     // not spent before
	latest time.Time     // spent after
	enough time.Duration // in between, spent when the process has worked so long
}

// Clock is what a Budget counts by.
type Clock struct {
	Now    func() time.Time
	Worked func() time.Duration // processor time; nil where only Now counts
}

// Real is the machine's clock.
var Real = Clock{time.Now, worked}

// slack is how many times longer than asked for a Budget lasts at most.
const slack = 4

// For returns a Budget that begins now.
func (c Clock) For(most time.Duration) Budget {
	now := c.Now()
	b := Budget{clock: c, end: now.Add(most), latest: now.Add(slack * most)}
	if c.Worked != nil {
		b.enough = c.Worked() + most
	}
	return b
}

// Again returns a Budget that begins now, by the same clock.
func (b Budget) Again(most time.Duration) Budget { return b.clock.For(most) }

// Part is Again, but is spent no later than b.
func (b Budget) Part(most time.Duration) Budget {
	part := b.Again(most)
	part.end, part.latest, part.enough = earlier(part.end, b.end), earlier(part.latest, b.latest), min(part.enough, b.enough)
	return part
}

func earlier(x, y time.Time) time.Time {
	if y.Before(x) {
		return y
	}
	return x
}

// Left reports whether something of the budget is left.
func (b Budget) Left() bool {
	if b.clock.Now == nil {
		return false
	}
	now := b.clock.Now()
	return now.Before(b.end) || b.clock.Worked != nil && now.Before(b.latest) && b.clock.Worked() < b.enough
}

// Now is the clock's.
func (b Budget) Now() time.Time { return b.clock.Now() }

// worked returns the processor time that all threads of this process have used.
func worked() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t) != nil {
		return 1 << 62
	}
	return time.Duration(t.Nano())
}
