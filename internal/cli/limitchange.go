package cli

import (
	"errors"
	"fmt"
	"io/fs"

	"ration/internal/abi"
	"ration/internal/limit"
	"ration/internal/region"
	"ration/machine"
)

// limitPage is where a job's limits are: its region, or an operator's file beside it.
type limitPage interface {
	Limit(device int) (abi.Limit, error)
	Total(device int) (uint64, error)
	Compute(device int) (region.Compute, error)
	SetLimit(device int, limit abi.Limit) error
	SetCompute(device int, share uint64) error
	SetComputeMax(device int, most uint64) error
}

// appliedLimits says what applyLimits has changed.
type appliedLimits struct {
	devices       []int
	before, after map[int]machine.Device // of all devices of the job
}

// applyLimits changes a job's limits: ration limit, ration top and the page do it here. It checks
// the whole change before it makes any of it.
func applyLimits(s machine.Job, change limit.Limits) (out appliedLimits, err error) {
	page, operator, done, err := openLimits(s)
	if err != nil {
		return out, statusError{err, ExitOpen}
	}
	defer done()
	if out.before, err = readLimits(page, operator, s); err != nil {
		return out, err
	}
	known := 0 // devices whose size a process, or ration run, has found
	for d := range abi.Devices {
		if _, has := out.before[d]; change.Names(d) || has && change.HasDefault() {
			out.devices = append(out.devices, d)
		}
		if total, err := page.Total(d); err == nil && total > 0 {
			known++
		}
	}
	if len(out.devices) == 0 {
		return out, usageError("%s has no limits and uses no device yet (name one: --device 0)", s.Title())
	}
	var steps []func() error
	for _, d := range out.devices {
		if total, err := page.Total(d); err == nil && total == 0 && known > 0 {
			return out, usageError("device %d: the job has no such device (it has %d, counted from 0)", d, known)
		}
		more, err := planChange(page, d, change)
		if err != nil {
			return out, err
		}
		steps = append(steps, more...)
	}
	for _, step := range steps {
		if err := step(); err != nil {
			err = fmt.Errorf("changing the limit of %s: %w", s.Title(), err)
			if errors.Is(err, region.ErrReadOnly) || errors.Is(err, fs.ErrPermission) {
				err = fmt.Errorf("%w (run it as the owner of that file)", err)
			}
			return out, err
		}
	}
	out.after, err = readLimits(page, operator, s)
	return out, err
}

// openLimits opens a job's limits. operator says that they are in a file of an operator's. That
// file does not depend on the region, which the job can write.
func openLimits(s machine.Job) (page limitPage, operator bool, done func(), err error) {
	beside, err := region.OpenOperatorLimits(s.Path)
	switch {
	case err == nil:
		return beside, true, func() {}, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, false, nil, err
	case s.Err() != nil:
		return nil, false, nil, s.Err()
	}
	r, err := region.OpenForLimits(s.Path)
	if err != nil {
		return nil, false, nil, err
	}
	return r, false, func() { _ = r.Close() }, nil
}

// readLimits returns the devices that a limit for all devices is for: those with a limit, and those
// in use unless the limits are an operator's. Once the size of one device is known, a number
// without a size is no device, whatever the region says was used of it.
func readLimits(page limitPage, operator bool, s machine.Job) (map[int]machine.Device, error) {
	all := map[int]machine.Device{}
	if !operator {
		all = byDevice(s)
	}
	var totals [abi.Devices]uint64
	known := false
	for d := range abi.Devices {
		has, err := page.Limit(d)
		if err != nil {
			return nil, err
		}
		if totals[d], err = page.Total(d); err != nil {
			return nil, err
		}
		known = known || totals[d] > 0
		time, err := page.Compute(d)
		if err != nil {
			return nil, err
		}
		of := all[d].Compute
		if of == nil && time.Set() {
			of = &machine.Compute{Share: time.Share, Max: time.Max, Round: time.Round}
		}
		if has.IsSet() || of != nil || operator && totals[d] > 0 {
			all[d] = machine.Device{Device: d, Limited: has.Limited(), Limit: has.Bytes(), Total: totals[d], Compute: of}
		}
	}
	empty := operator && len(all) == 0 // the file says nothing yet, so a limit for all is for each
	for d := range abi.Devices {
		if empty {
			all[d] = machine.Device{Device: d}
		}
		if known && totals[d] == 0 {
			delete(all, d)
		}
	}
	return all, nil
}

func byDevice(s machine.Job) map[int]machine.Device {
	devices := map[int]machine.Device{}
	for _, d := range s.Devices {
		devices[d.Device] = d
	}
	return devices
}

// planChange checks a change of one device's limits, and returns its steps.
func planChange(page limitPage, device int, change limit.Limits) (steps []func() error, err error) {
	if want := change.Memory.For(device); want.IsSet() {
		l, err := newLimit(page, device, want)
		if err != nil {
			return nil, err
		}
		steps = append(steps, func() error { return page.SetLimit(device, l) })
	}
	has, err := page.Compute(device)
	if err != nil {
		return nil, err
	}
	share, most := change.Compute.For(device), change.ComputeMax.For(device)
	if share.IsSet() {
		has.Share = share.Percent()
		steps = append(steps, func() error { return page.SetCompute(device, uint64(share)) })
	}
	if most.IsSet() {
		has.Max = most.Percent()
		steps = append(steps, func() error { return page.SetComputeMax(device, uint64(most)) })
	}
	if (share.IsSet() || most.IsSet()) && has.Max != 0 && has.Share > has.Max {
		return nil, neverGetsShare(device, has.Share, has.Max)
	}
	return steps, nil
}

// newLimit returns a memory limit as the region has it.
func newLimit(page limitPage, device int, want limit.Memory) (abi.Limit, error) {
	total, err := page.Total(device)
	if err != nil {
		return 0, err
	}
	size, err := want.Of(limit.Size(total))
	least := limit.CheckLeast(size, "", want.String())
	switch most := limit.Size(abi.MaxUnits * abi.Unit); {
	case errors.Is(err, limit.ErrNoMemory):
		return 0, usageError("%v of device %d: no process of the job has found out its size yet (give a size, like 10g)", want, device)
	case err != nil:
		return 0, err
	case size == 0:
		return abi.Unlimited, nil
	case least != nil:
		return 0, least
	case size > most:
		return 0, usageError("limit %v: a region counts up to %v (use none for no limit)", want, most)
	case total > 0 && uint64(size) > total:
		return 0, usageError("limit %v: device %d has %v (use that or less, or none for no limit)", want, device, limit.Size(total))
	}
	return abi.MakeLimit(uint64(size)), nil
}
