package region

import (
	"fmt"
	"sync/atomic"

	"ration/internal/abi"
)

// Compute is a job's ration of one device's time, and how much of it was used.
type Compute struct {
	Share  int    // per cent; 0 without a share
	Max    int    // per cent; 0 without a cap
	Round  uint64 // microseconds
	Used   uint64 // nanoseconds, as measured for a cap
	Waited uint64 // nanoseconds that launches waited because of the cap, summed over all threads
	InTurn uint64 // nanoseconds: the part of Used in which no other context had the device, for certain
}

// Set reports whether the job has a share or a cap.
func (c Compute) Set() bool { return c.Share != 0 || c.Max != 0 }

// Compute returns a device's current share and cap.
func (r *Region) Compute(device int) (Compute, error) {
	return lookAt(r, device, func() Compute {
		limits, had := &r.limits.Device[device], &r.m.Compute[device]
		return Compute{
			Share:  abi.Percent(atomic.LoadUint64(&limits.Compute)),
			Max:    abi.Percent(atomic.LoadUint64(&limits.ComputeMax)),
			Round:  abi.RoundOf(atomic.LoadUint64(&r.limits.Round)),
			Used:   atomic.LoadUint64(&had.Used),
			Waited: atomic.LoadUint64(&had.Waited),
			InTurn: atomic.LoadUint64(&had.InTurn),
		}
	})
}

// ProcessCompute is a process's use of one device's time.
type ProcessCompute struct {
	Work   abi.Work
	Slice  abi.Slice
	Used   uint64 // nanoseconds, as measured for a cap
	Waited uint64 // nanoseconds that its launches waited for a cap
}

// sliceReasons are texts that tell why a share is not enforced, by the state of the slice.
var sliceReasons = map[int]string{
	abi.SliceUnseen:  "a context was made without the driver's call that sets a time slice",
	abi.SliceUnknown: "the driver sets time slices by a call that this version of ration does not know",
	abi.SliceRefused: "the driver refused the time slice",
	abi.SliceLost:    "the driver has another time slice than it was given",
	abi.SliceCrowded: "it has more than 256 contexts, and those beyond are not followed",
}

// NotEnforced returns why the share of a process with a context is not enforced, in a job with a
// share; "" if it is.
func (c ProcessCompute) NotEnforced() string {
	switch state := c.Slice.State(); {
	case state == abi.SliceKept:
		return ""
	case state == abi.SliceNone:
		return "it has set no slice: it started before the job had a share or a cap (restart it), or has called nothing since"
	case state == abi.SliceReady:
		return "it has called nothing since the job has a share"
	case sliceReasons[state] != "":
		return sliceReasons[state]
	default:
		return fmt.Sprintf("for a reason that this version of ration does not know (%d)", state)
	}
}

// Held reports whether a share or a cap applies to a process with a context. It does if the process
// started when the job had one on any device.
func (c ProcessCompute) Held() bool { return c.Slice.State() != abi.SliceNone }

// ProcessCompute returns the use of a device's time by the process in slot.
func (r *Region) ProcessCompute(device, slot int) (ProcessCompute, error) {
	return lookAt(r, device, func() (c ProcessCompute) {
		a := r.ownAccount(device, slot)
		if a == nil {
			return c
		}
		return ProcessCompute{
			Work:   abi.Work(atomic.LoadUint64(&a.Work)),
			Slice:  abi.Slice(atomic.LoadUint64(&a.Slice)),
			Used:   atomic.LoadUint64(&a.TimeUsed),
			Waited: atomic.LoadUint64(&a.TimeWaited),
		}
	})
}

// ownAccount returns a slot's account on a device. It returns nil if there is no such slot, or if
// the account still belongs to the slot's previous owner.
func (r *Region) ownAccount(device, slot int) *abi.Account {
	if uint(slot) >= abi.Slots {
		return nil
	}
	a := &r.m.Accounts[device][slot]
	if atomic.LoadUint64(&a.Gen) != abi.Status(atomic.LoadUint64(&r.m.Status[slot])).Gen() {
		return nil
	}
	return a
}
