package region

import (
	"fmt"
	"runtime/debug"
	"sync/atomic"

	"ration/internal/abi"
)

// NameDevice sets the UUID of a device index, before processes join that might number devices
// differently. If the index has another UUID already, that is an error. Pairs with name in
// shim/region/device.c.
func (r *Region) NameDevice(device int, uuid [2]uint64, total uint64) (err error) {
	if uint(device) >= abi.Devices || uuid[1] == 0 {
		return fmt.Errorf("device %d: %w (a region has devices 0 to %d, with UUIDs)", device, ErrDevice, abi.Devices-1)
	}
	defer r.guard(&err, debug.SetPanicOnFault(true))
	if err := r.whole(); err != nil {
		return err
	}
	return r.withLimits(r.limitsAt, func(page *abi.Limits) error {
		l := &page.Device[device]
		// Write the second word first: it decides between two concurrent writers.
		for _, w := range []int{1, 0} {
			if !atomic.CompareAndSwapUint64(&l.UUID[w], 0, uuid[w]) && atomic.LoadUint64(&l.UUID[w]) != uuid[w] {
				return fmt.Errorf("naming device %d of %s: %w (it has another UUID; were the devices changed?)", device, r.path, ErrDevice)
			}
		}
		atomic.CompareAndSwapUint64(&l.Total, 0, total)
		return nil
	})
}

// UUID returns the UUID of a device index, set by NameDevice; zero until a process of the job has
// found it out.
func (r *Region) UUID(device int) ([2]uint64, error) {
	return lookAt(r, device, func() (uuid [2]uint64) {
		l := &r.limits.Device[device]
		// Read the second word first, as it is written.
		if uuid[1] = atomic.LoadUint64(&l.UUID[1]); uuid[1] != 0 {
			uuid[0] = atomic.LoadUint64(&l.UUID[0])
		}
		return uuid
	})
}
