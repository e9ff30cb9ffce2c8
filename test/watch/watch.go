// Package watch looks at a region from outside, through a mapping of its own,
// and holds every reading against what must be true at every instant: no device
// has granted more than its limit, and what a process holds is the sum of its
// kinds.
package watch

import (
	"errors"
	"fmt"
	"runtime/debug"

	"ration/internal/abi"
	"ration/internal/region"
)

// ErrViolated is returned for a reading that must never be.
var ErrViolated = errors.New("the region broke its promise")

// Watch reads one region.
type Watch struct {
	r   *region.Region
	buf []region.Holding

	Readings   uint64 // taken so far
	BestEffort uint64 // holdings that changed too often to be read in one piece
}

// Open attaches to an existing region, to look only.
func Open(path string) (*Watch, error) {
	r, err := region.OpenReadOnly(path)
	if err != nil {
		return nil, err
	}
	return &Watch{r: r}, nil
}

// Over watches through a region that is open already.
func Over(r *region.Region) *Watch { return &Watch{r: r} }

// Close ends the watch.
func (w *Watch) Close() error { return w.r.Close() }

// Look takes one reading of a device that may have granted at most ceiling bytes.
func (w *Watch) Look(device int, ceiling uint64) error {
	used, err := Used(w.r, device)
	if err != nil {
		return err
	}
	if used > ceiling {
		return fmt.Errorf("device %d: %d bytes granted where %d may be: %w", device, used, ceiling, ErrViolated)
	}
	if w.buf, err = w.r.Holdings(device, w.buf[:0]); err != nil {
		return err
	}
	w.Readings++
	for _, h := range w.buf {
		if h.BestEffort {
			w.BestEffort++
			continue
		}
		if sum := Sum(h); h.Total != sum {
			return fmt.Errorf("device %d, slot %d: a total of %d where the kinds %v make %d: %w", device, h.Slot, h.Total, h.Kind, sum, ErrViolated)
		}
	}
	return nil
}

// Sum adds up a holding's kinds.
func Sum(h region.Holding) (sum uint64) {
	for _, bytes := range h.Kind {
		sum += bytes
	}
	return sum
}

// Books compares what a device has granted with what its slots hold. It is for a
// region at rest, with no dead process left in it.
func (w *Watch) Books(device int) (used uint64, err error) {
	if used, err = Used(w.r, device); err != nil {
		return 0, err
	}
	if w.buf, err = w.r.Holdings(device, w.buf[:0]); err != nil {
		return 0, err
	}
	held := uint64(0)
	for _, h := range w.buf {
		held += h.Total
	}
	if held != used {
		return used, fmt.Errorf("device %d: %d bytes granted, %d held by %d slots: %w", device, used, held, len(w.buf), ErrViolated)
	}
	return used, nil
}

// Used is what a device has granted, or an error where the file can no longer be
// trusted. region.Used itself leaves that to its caller.
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
	// Afterwards: a file that was cut short before the reading shows it now.
	_, err = r.Limit(device)
	return used, err
}
