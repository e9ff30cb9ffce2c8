package observer

import (
	"errors"
	"fmt"
	"runtime/debug"

	"ration/internal/abi"
	"ration/internal/region"
)

// ErrViolated is returned for content that an intact region never has.
var ErrViolated = errors.New("the region is inconsistent")

// Checker reads a region and checks each result. It is not safe for concurrent use.
type Checker struct {
	Readings   uint64
	BestEffort uint64 // holdings that changed too often for a consistent read

	r   *region.Region
	buf []region.Holding
}

// Open attaches a Checker to an existing region, for reading only.
func Open(path string) (*Checker, error) {
	r, err := region.OpenMapped(path)
	if err != nil {
		return nil, err
	}
	return New(r), nil
}

// New returns a Checker of a region that is open already.
func New(r *region.Region) *Checker { return &Checker{r: r} }

// Close closes the region.
func (c *Checker) Close() error { return c.r.Close() }

// Check reads a device once: at most ceiling bytes may be granted, and the memory of each process
// must be the sum of its kinds.
func (c *Checker) Check(device int, ceiling uint64) error {
	used, err := Used(c.r, device)
	if err != nil {
		return err
	}
	if used > ceiling {
		return fmt.Errorf("device %d: %d bytes granted of at most %d: %w", device, used, ceiling, ErrViolated)
	}
	if c.buf, err = c.r.Holdings(device, c.buf[:0]); err != nil {
		return err
	}
	c.Readings++
	for _, h := range c.buf {
		if h.BestEffort {
			c.BestEffort++
		} else if err := checkHolding(device, h); err != nil {
			return err
		}
	}
	return nil
}

func checkHolding(device int, h region.Holding) error {
	if sum := Sum(h); h.Total != sum {
		return fmt.Errorf("device %d, slot %d: a total of %d bytes, but the kinds %v sum to %d: %w", device, h.Slot, h.Total, h.Kind, sum, ErrViolated)
	}
	return nil
}

// Sum returns the sum of a holding's kinds.
func Sum(h region.Holding) (sum uint64) {
	for _, bytes := range h.Kind {
		sum += bytes
	}
	return sum
}

// Balance is the granted memory of a device, by two counts. They are equal while no process makes a
// change.
type Balance struct {
	Granted   uint64 // in the device's ledger word, in bytes
	Held      uint64 // by all processes together, in bytes
	Contexts  uint64 // the part of Held that contexts take
	Processes int    // that have a slot
}

// ReadBalance reads both counts of a device.
func ReadBalance(r *region.Region, device int) (b Balance, err error) {
	holdings, err := r.Holdings(device, nil)
	if err != nil {
		return b, err
	}
	for _, h := range holdings {
		b.Held += h.Total
		b.Contexts += h.Kind[abi.Context]
	}
	processes, err := r.Processes()
	if err != nil {
		return b, err
	}
	b.Processes = len(processes)
	b.Granted, err = Used(r, device)
	return b, err
}

// Balanced returns how much of a device is granted. The error matches ErrViolated if the processes
// hold another amount, because they changed it during the read, or because one has died and was not
// reaped.
func (c *Checker) Balanced(device int) (used uint64, err error) {
	b, err := ReadBalance(c.r, device)
	if err == nil && b.Held != b.Granted {
		err = fmt.Errorf("device %d: %d bytes granted, %d held by %d processes: %w", device, b.Granted, b.Held, b.Processes, ErrViolated)
	}
	return b.Granted, err
}

// Used returns how many bytes of a device are granted, or an error if the file was cut short.
// region.Used does not check that.
func Used(r *region.Region, device int) (used uint64, err error) {
	defer func(before bool) {
		debug.SetPanicOnFault(before)
		if p := recover(); p != nil {
			err = fmt.Errorf("reading what is used: %w (%v)", region.ErrDamaged, p)
		}
	}(debug.SetPanicOnFault(true))
	if device < 0 || device >= abi.Devices {
		return 0, region.ErrDevice
	}
	used = r.Used(device)
	// After the read: this finds a file that was cut short before it.
	_, err = r.Limit(device)
	return used, err
}
