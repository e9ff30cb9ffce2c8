// Package pace says when something may be done that others bring about: at once after a quiet
// moment, also a few times in a row, as one thing that happens is several changes; and steadily where
// it never ends.
package pace

import "time"

// After returns when something may be done again that was due at a time, and has cost so much now:
// later by that, but what was not used is kept for no longer than ahead.
func After(due, now time.Time, ahead, cost time.Duration) time.Time {
	if earliest := now.Add(-ahead); due.Before(earliest) {
		due = earliest
	}
	return due.Add(cost)
}

// Pace is the pace of one thing. It is not for use by several goroutines at once.
type Pace struct {
	Every time.Duration // one is earned in this time
	Most  int           // so many are kept
	free  time.Time     // when all that were used are earned again
}

// Next takes one, and returns when it may be used: now, or later.
func (p *Pace) Next(now time.Time) time.Time {
	p.free = After(p.free, now, 0, p.Every)
	if at := p.free.Add(-time.Duration(p.Most) * p.Every); at.After(now) {
		return at
	}
	return now
}
