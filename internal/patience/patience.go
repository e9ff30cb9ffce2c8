// Package patience bounds how long a tenant can keep a process that looks at its files.
//
// What is bounded is the work of the process that looks, and so is what it costs: a process that
// waits for a processor, on a busy machine, is not kept by a tenant. Counted in time alone, the
// patience would be over there before anything was asked.
package patience

import (
	"time"

	"golang.org/x/sys/unix"
)

// Patience is over after a time, or, where this process had not as much processor time within it,
// after that or four times as long. The zero value is over.
type Patience struct {
	clock  Clock
	end    time.Time     // it is not over before
	latest time.Time     // it is over
	enough time.Duration // and in between when the process has worked so long
}

// Clock is what a Patience goes by.
type Clock struct {
	Now    func() time.Time
	Worked func() time.Duration // processor time; nil where only Now counts
}

// Real is the machine's clock.
var Real = Clock{time.Now, worked}

// slack is how many times as long as it should be a Patience is at most.
const slack = 4

// For returns a Patience that begins now.
func (c Clock) For(most time.Duration) Patience {
	now := c.Now()
	p := Patience{clock: c, end: now.Add(most), latest: now.Add(slack * most)}
	if c.Worked != nil {
		p.enough = c.Worked() + most
	}
	return p
}

// Again returns a Patience that begins now, by the same clock.
func (p Patience) Again(most time.Duration) Patience { return p.clock.For(most) }

// Part is Again, and is over when p is, if that is sooner.
func (p Patience) Part(most time.Duration) Patience {
	part := p.Again(most)
	part.end, part.latest, part.enough = earlier(part.end, p.end), earlier(part.latest, p.latest), min(part.enough, p.enough)
	return part
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// Left reports whether there is patience left.
func (p Patience) Left() bool {
	if p.clock.Now == nil {
		return false
	}
	now := p.clock.Now()
	return now.Before(p.end) || p.clock.Worked != nil && now.Before(p.latest) && p.clock.Worked() < p.enough
}

// Now is the clock's.
func (p Patience) Now() time.Time { return p.clock.Now() }

// worked is the processor time that this process has used, all threads together.
func worked() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t) != nil {
		return 1 << 62
	}
	return time.Duration(t.Nano())
}
