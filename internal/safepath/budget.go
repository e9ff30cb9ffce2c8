package safepath

import (
	"time"

	"golang.org/x/sys/unix"
)

// Budget bounds how much time a process spends on files that a tenant can make slow. It measures both
// elapsed time and the processor time of this process: on a busy machine a process waits for a processor,
// and with elapsed time alone its budget would be used up before it has read anything.
//
// It is used up after a given time. If this process had less processor time than that, it lasts
// until the process has had as much, but at most four times as long. The zero value is used up.
type Budget struct {
	clock  Clock
	end    time.Time     // not used up before this time
	latest time.Time     // used up after this time
	enough time.Duration // in between, used up when the process has had this much processor time
}

// Clock is the time source of a Budget.
type Clock struct {
	Now    func() time.Time
	Worked func() time.Duration // processor time; nil to use only Now
}

// RealClock is the machine's clock.
var RealClock = Clock{time.Now, worked}

// slack is how many times longer than requested a Budget may last.
const slack = 4

// For returns a Budget that starts now.
func (c Clock) For(most time.Duration) Budget {
	now := c.Now()
	b := Budget{clock: c, end: now.Add(most), latest: now.Add(slack * most)}
	if c.Worked != nil {
		b.enough = c.Worked() + most
	}
	return b
}

// Again returns a Budget that starts now, with the same clock.
func (b Budget) Again(most time.Duration) Budget { return b.clock.For(most) }

// Part is like Again, but is used up no later than b.
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

// Left reports whether any of the budget is left.
func (b Budget) Left() bool {
	if b.clock.Now == nil {
		return false
	}
	now := b.clock.Now()
	return now.Before(b.end) || b.clock.Worked != nil && now.Before(b.latest) && b.clock.Worked() < b.enough
}

// Now returns the time of the clock.
func (b Budget) Now() time.Time { return b.clock.Now() }

// worked returns the processor time that all threads of this process have used.
func worked() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t) != nil {
		return 1 << 62
	}
	return time.Duration(t.Nano())
}
