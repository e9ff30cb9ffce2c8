package region

import (
	"sync/atomic"

	"ration/internal/abi"
)

// lentUnits returns how many units of a dead process's account stay charged, since there may be a
// descriptor of memory that it exported: docs/protocols.md, *Lent memory*. The slot is condemned.
// This process has no file of the driver open, so it cannot ask the kernel about descriptors, as
// region_lent_units in C does. It assumes that there are some as long as another process of the job
// may have them.
func (r *Region) lentUnits(device, slot int, st abi.Status) uint64 {
	a := &r.m.Accounts[device][slot]
	// Acquire, in this order: pairs with region_set_exports in C.
	lock, exported := atomic.LoadUint64(&a.ExportLock), abi.Exported(atomic.LoadUint64(&a.Exported))
	// A process that died before it set the lock has given no descriptor to its program.
	if lock == 0 || exported.Units() == 0 || atomic.LoadUint64(&a.Gen) != st.Gen() || !r.neighbour(slot) {
		return 0
	}
	return exported.Units()
}

// neighbour reports whether a living process of the job is in the PID namespace of a slot's dead
// owner, and so may have its descriptors.
func (r *Region) neighbour(dead int) bool {
	pidns := atomic.LoadUint64(&r.m.Slots[dead].PIDNS)
	for slot := range r.high() {
		st, e := abi.Status(atomic.LoadUint64(&r.m.Status[slot])), &r.m.Slots[slot]
		if slot != dead && st.State() == abi.SlotActive && atomic.LoadUint64(&e.PIDNS) == pidns && r.alive.dead(slot, e, st) == 0 {
			return true
		}
	}
	return false
}
