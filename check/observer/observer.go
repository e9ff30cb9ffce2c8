// Package observer reads a region repeatedly from outside, while other processes change it, and
// checks each result against what must be true at every instant. It does not depend on the
// processes that it observes.
package observer

import (
	"sync"
	"sync/atomic"
	"time"

	"ration/internal/region"
)

// Loop calls a function repeatedly, in the background.
type Loop struct {
	stop  chan struct{}
	once  sync.Once
	ended chan struct{}
	err   error // error of the function; written before ended is closed
}

// Start calls read until Stop, or until it returns an error, with a pause of
// interval between two calls.
func Start(interval time.Duration, read func() error) *Loop {
	l := &Loop{stop: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(l.ended)
		for l.err == nil {
			select {
			case <-l.stop:
				return
			default:
			}
			if l.err = read(); l.err == nil && interval > 0 {
				select {
				case <-l.stop:
				case <-time.After(interval):
				}
			}
		}
	}()
	return l
}

// Stop ends the calls and returns the function's error. It may be called more
// than once.
func (l *Loop) Stop() error {
	l.once.Do(func() { close(l.stop) })
	<-l.ended
	return l.err
}

// Ended returns a channel that is closed after the last call.
func (l *Loop) Ended() <-chan struct{} { return l.ended }

// Tally sums up readings of a device's usage.
type Tally struct {
	Readings int64
	Exceeded int64  // readings above the limit
	Most     uint64 // the highest reading, in bytes
}

// Add adds a reading, in bytes.
func (t *Tally) Add(used, limit uint64) {
	t.Readings++
	t.Most = max(t.Most, used)
	if used > limit {
		t.Exceeded++
	}
}

// Usage observes how much of a device is in use. Its tally is final after Stop.
type Usage struct {
	*Loop
	Tally

	changes atomic.Int64
}

// batch is the number of readings in one call of the loop.
const batch = 512

// StartUsage starts to read a device's usage, in batches with a pause of interval
// between two of them. The limit is in bytes.
func StartUsage(r *region.Region, device int, limit uint64, interval time.Duration) *Usage {
	u := &Usage{}
	last := uint64(0)
	u.Loop = Start(interval, func() error {
		for range batch {
			used := r.Used(device)
			if used != last {
				last = used
				u.changes.Add(1)
			}
			u.Add(used, limit)
		}
		return nil
	})
	return u
}

// Changes returns how often two readings in a row differed so far. At least as
// many requests were granted or returned.
func (u *Usage) Changes() int64 { return u.changes.Load() }
