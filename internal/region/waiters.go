package region

import (
	"slices"
	"sync/atomic"
	"time"

	"ration/internal/abi"
)

// Waiter is a request that waits for memory of the job. Its process claims all of it.
type Waiter struct {
	Slot, Device int
	Bytes        uint64
	Since        time.Time
}

// Waiters returns the requests that wait for memory of the job, in their turns.
func (r *Region) Waiters() ([]Waiter, error) {
	return look(r, func() []Waiter {
		type turn struct {
			Waiter
			ticket uint32
		}
		var turns []turn
		for i := range r.m.Header.Waiters {
			e := &r.m.Header.Waiters[i]
			place := abi.WaitPlace(atomic.LoadUint64(&e.Place))
			slot := place.Owner() - 1
			if slot < 0 || slot >= abi.Slots || !place.Of(abi.Status(atomic.LoadUint64(&r.m.Status[slot]))) {
				continue
			}
			w := Waiter{slot, place.Device(), possible(atomic.LoadUint64(&e.Units), abi.MaxUnits) * abi.Unit, time.Unix(0, timeOf(atomic.LoadUint64(&e.Since)))}
			total := atomic.LoadUint64(&r.limits.Device[w.Device].Total) // 0: no process has used the device
			if w.Bytes > 0 && w.Bytes <= total && abi.WaitPlace(atomic.LoadUint64(&e.Place)) == place {
				turns = append(turns, turn{w, place.Ticket()})
			}
		}
		slices.SortFunc(turns, func(x, y turn) int { return int(int32(x.ticket - y.ticket)) }) // tickets wrap around
		out := make([]Waiter, len(turns))
		for i := range turns {
			out[i] = turns[i].Waiter
		}
		return out
	})
}

// WaitAlloc returns for how many milliseconds requests of the job wait for memory; 0 if they do not.
func (r *Region) WaitAlloc() (uint64, error) {
	return look(r, func() uint64 { return abi.WaitAllocOf(atomic.LoadUint64(&r.limits.WaitAlloc)) })
}

// SetWaitAlloc changes for how many milliseconds requests of the job wait for memory, or sets it to
// abi.WaitAllocNone.
func (r *Region) SetWaitAlloc(milliseconds uint64) error {
	return r.changeLimits(changeWaitAlloc(milliseconds))
}

// SetWaitAlloc is like [Region.SetWaitAlloc].
func (l *OperatorLimits) SetWaitAlloc(milliseconds uint64) error {
	return l.change(changeWaitAlloc(milliseconds))
}

// changeWaitAlloc returns the function that sets the time on a page.
func changeWaitAlloc(milliseconds uint64) func(*abi.Limits) error {
	return func(page *abi.Limits) error { return changeWord(page, &page.WaitAlloc, milliseconds) }
}
