// Package observer watches a device's figure from outside, reading it again and
// again while others allocate, and trusts nobody. What it never saw pass the
// limit was not asked of those who keep it.
package observer

import (
	"sync"
	"sync/atomic"
	"time"

	"ration/internal/region"
)

// batch is how many readings are made before looking whether to stop.
const batch = 512

// Observer watches one device. Its figures are final after Stop.
type Observer struct {
	Readings int64
	Passed   int64  // readings above the limit
	Most     uint64 // the highest reading, in bytes

	changes  atomic.Int64
	done     chan struct{}
	once     sync.Once
	finished sync.WaitGroup
}

// Watch starts to watch a device of a region, against a limit in bytes. It rests
// between batches, or not at all where rest is zero.
func Watch(r *region.Region, device int, limit uint64, rest time.Duration) *Observer {
	o := &Observer{done: make(chan struct{})}
	o.finished.Go(func() {
		last := uint64(0)
		for {
			select {
			case <-o.done:
				return
			default:
			}
			for range batch {
				used := r.Used(device)
				if used != last {
					last = used
					o.changes.Add(1)
				}
				o.Most = max(o.Most, used)
				if used > limit {
					o.Passed++
				}
			}
			o.Readings += batch
			if rest > 0 {
				time.Sleep(rest)
			}
		}
	})
	return o
}

// Changes is how often two readings in a row differed so far: at least as many
// requests were granted or returned.
func (o *Observer) Changes() int64 { return o.changes.Load() }

// Stop ends the watching, and may be called again.
func (o *Observer) Stop() {
	o.once.Do(func() { close(o.done) })
	o.finished.Wait()
}
