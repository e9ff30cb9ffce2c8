package region

import (
	"sync/atomic"
	"time"

	"ration/internal/abi"
)

// The lane: device memory that the library of a process moves itself (internal/sleep/PROTOCOL.md, The lane). A process
// that has the sleep lock asks for it by the word Slot.Lane, and a thread of that process answers there.

// Lane returns a process's word. It is LaneNone if the process has no such memory, or lost its slot.
func (r *Region) Lane(s *Sleeper) (abi.Lane, error) {
	return look(r, func() abi.Lane {
		l := abi.Lane(atomic.LoadUint64(&r.m.Slots[s.Slot].Lane))
		if !r.lives(s) || l.Gen() != abi.MakeLane(s.status.Gen(), 0, 0, 0).Gen() {
			return abi.MakeLane(0, 0, 0, abi.LaneNone)
		}
		return l
	})
}

// SwapLane replaces a process's word, wakes the thread, and reports whether it did: not if the word has changed.
func (r *Region) SwapLane(s *Sleeper, from, to abi.Lane) (bool, error) {
	return look(r, func() bool {
		word := &r.m.Slots[s.Slot].Lane
		if !atomic.CompareAndSwapUint64(word, uint64(from), uint64(to)) {
			return false
		}
		futexWake(word)
		return true
	})
}

// WaitLane returns when a process's word is not seen any more, or after most.
func (r *Region) WaitLane(s *Sleeper, seen abi.Lane, most time.Duration) error {
	_, err := look(r, func() bool { futexWait(&r.m.Slots[s.Slot].Lane, uint64(seen), most); return true })
	return err
}
