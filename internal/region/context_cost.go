package region

import (
	"fmt"
	"runtime/debug"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"ration/internal/abi"
)

// Costs are measured sizes of contexts that a region keeps, so that the next context need not be
// measured: for each device the memory of a process's first context, and how processes find
// themselves in the driver's list. They are hints. The library corrects a wrong one within seconds,
// and ignores one that is of another device or PID namespace.
type Costs struct {
	Device [abi.Devices]abi.ContextCost
	Names  abi.NVMLPIDs
}

// Costs returns the sizes in this region.
func (r *Region) Costs() (Costs, error) {
	return look(r, func() (c Costs) {
		for d := range c.Device {
			c.Device[d] = abi.ContextCost(atomic.LoadUint64(&r.m.Devices[d].ContextCost))
		}
		c.Names = abi.NVMLPIDs(atomic.LoadUint64(&r.m.Header.NVMLPIDs))
		return c
	})
}

// OfferCosts adds sizes that the region does not have yet.
func (r *Region) OfferCosts(c Costs) (err error) {
	if !r.writable {
		return fmt.Errorf("region %s: %w", r.path, ErrReadOnly)
	}
	defer r.guard(&err, debug.SetPanicOnFault(true))
	if err := r.whole(); err != nil {
		return err
	}
	// Swap, do not store: a process that has measured knows better.
	for d, cost := range c.Device {
		if cost != 0 {
			atomic.CompareAndSwapUint64(&r.m.Devices[d].ContextCost, 0, uint64(cost))
		}
	}
	if c.Names != 0 {
		atomic.CompareAndSwapUint64(&r.m.Header.NVMLPIDs, 0, uint64(c.Names))
	}
	return nil
}

// ReadCosts returns the sizes in the region at path. It returns ErrOwner if another user can write
// the region, because a size that is too large would keep programs of another job from starting.
func ReadCosts(path string) (_ Costs, err error) {
	r, err := OpenReadOnly(path)
	if err != nil {
		return Costs{}, err
	}
	defer r.Close()
	if err := r.file.checkOwner(path); err != nil {
		return Costs{}, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(r.file.fd, &st); err != nil {
		return Costs{}, fmt.Errorf("looking at %s: %w", path, err)
	}
	if st.Mode&0o022 != 0 {
		return Costs{}, fmt.Errorf("region %s can be written by others (mode %#o): %w", path, st.Mode&0o7777, ErrOwner)
	}
	return r.Costs()
}
