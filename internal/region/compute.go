package region

import (
	"runtime/debug"
	"sync/atomic"

	"ration/internal/abi"
)

// Compute is a job's ration of one device's time, and what it has had of it.
type Compute struct {
	Share  int    // per cent; 0 without a share
	Max    int    // per cent; 0 without a cap
	Round  uint64 // microseconds
	Used   uint64 // nanoseconds, as measured for a cap
	Waited uint64 // nanoseconds that launches waited for the cap, over all threads
}

// Set reports whether the job has a share or a cap.
func (c Compute) Set() bool { return c.Share != 0 || c.Max != 0 }

// Compute is a device's share and cap at this moment.
func (r *Region) Compute(device int) (c Compute, err error) {
	if err := checkDevice(device); err != nil {
		return c, err
	}
	defer r.guard(&err, debug.SetPanicOnFault(true))
	if err := r.whole(); err != nil {
		return c, err
	}
	limits, had := &r.limits.Device[device], &r.m.Compute[device]
	return Compute{
		Share:  abi.Percent(atomic.LoadUint64(&limits.Compute)),
		Max:    abi.Percent(atomic.LoadUint64(&limits.ComputeMax)),
		Round:  abi.RoundOf(atomic.LoadUint64(&r.limits.Round)),
		Used:   atomic.LoadUint64(&had.Used),
		Waited: atomic.LoadUint64(&had.Waited),
	}, r.whole()
}

// ProcessCompute is what one process has of one device's time.
type ProcessCompute struct {
	Work   abi.Work
	Slice  abi.Slice
	Used   uint64 // nanoseconds, as measured for a cap
	Waited uint64 // nanoseconds that its launches waited for a cap
}

// ProcessCompute is what the process in slot has of a device's time.
func (r *Region) ProcessCompute(device, slot int) (c ProcessCompute, err error) {
	if uint(device) >= abi.Devices || uint(slot) >= abi.Slots {
		return c, ErrDevice
	}
	defer r.guard(&err, debug.SetPanicOnFault(true))
	if err := r.whole(); err != nil {
		return c, err
	}
	a := &r.m.Accounts[device][slot]
	if atomic.LoadUint64(&a.Gen) != abi.Status(atomic.LoadUint64(&r.m.Status[slot])).Gen() {
		return c, nil // another process's, which had the slot before
	}
	return ProcessCompute{
		Work:   abi.Work(atomic.LoadUint64(&a.Work)),
		Slice:  abi.Slice(atomic.LoadUint64(&a.Slice)),
		Used:   atomic.LoadUint64(&a.TimeUsed),
		Waited: atomic.LoadUint64(&a.TimeWaited),
	}, nil
}
