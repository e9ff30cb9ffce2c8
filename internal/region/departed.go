package region

import (
	"sync/atomic"

	"ration/internal/abi"
)

// Departed is a process that has left or died, and the most memory of a device that it held.
type Departed struct {
	Slot   int
	PID    int // in its own PID namespace
	Name   string
	Joined int64 // Unix nanoseconds
	Peak   uint64
}

// Departed appends to buf the former processes that held memory of a device, unless another process
// has taken their slots.
func (r *Region) Departed(device int, buf []Departed) ([]Departed, error) {
	return lookAt(r, device, func() []Departed {
		for slot := range r.high() {
			status := &r.m.Status[slot]
			st := abi.Status(atomic.LoadUint64(status))
			a, e := &r.m.Accounts[device][slot], &r.m.Slots[slot]
			if st.State() != abi.SlotFree || st.Gen() == 0 || atomic.LoadUint64(&a.Gen) != st.Gen() {
				continue
			}
			p := Departed{slot, pidOf(atomic.LoadUint64(&e.PID)), loadName(e), timeOf(atomic.LoadUint64(&e.Joined)), possible(atomic.LoadUint64(&a.Peak), maxBytes)}
			// A new owner changes the status before it writes any of this.
			if p.Peak > 0 && abi.Status(atomic.LoadUint64(status)) == st {
				buf = append(buf, p)
			}
		}
		return buf
	})
}
