package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"ration/internal/abi"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/node"
	"ration/internal/policy"
	"ration/internal/region"
	"ration/machine"
)

// limitPage is the storage of a job's limits: its region, or an operator's file beside it.
type limitPage interface {
	Limit(device int) (abi.Limit, error)
	Total(device int) (uint64, error)
	Compute(device int) (region.Compute, error)
	Hidden(device int) (bool, error)
	SetLimit(device int, limit abi.Limit) error
	SetCompute(device int, share uint64) error
	SetComputeMax(device int, most uint64) error
	SetPriority(priority uint64) error
	SetWaitAlloc(milliseconds uint64) error
}

// partPage collects changes of a run's limits, which are a part of its user's ration.
type partPage struct {
	limitPage
	changes []func(*region.Limits)
}

func (p *partPage) change(f func(*region.Limits)) error {
	p.changes = append(p.changes, f)
	return nil
}

func (p *partPage) SetLimit(d int, limit abi.Limit) error {
	return p.change(func(l *region.Limits) { l.Memory[d] = limit })
}

func (p *partPage) SetCompute(d int, share uint64) error {
	return p.change(func(l *region.Limits) { l.Compute[d] = share })
}

func (p *partPage) SetComputeMax(d int, most uint64) error {
	return p.change(func(l *region.Limits) { l.ComputeMax[d] = most })
}

// appliedLimits is the result of applyLimits.
type appliedLimits struct {
	devices       []int
	before, after map[int]machine.Device // of all devices of the job
}

// deviceLimits are the limits of one device on a page.
type deviceLimits struct {
	memory  abi.Limit
	total   uint64 // the device's memory; 0 until a process or ration run has found out the size
	compute region.Compute
	hidden  bool // the job does not see it
}

// readPage reads a page, and counts the devices whose size is known.
func readPage(page limitPage) (all [abi.Devices]deviceLimits, known int, err error) {
	for d := range all {
		var err2, err3, err4 error
		all[d].memory, err = page.Limit(d)
		all[d].total, err2 = page.Total(d)
		all[d].compute, err3 = page.Compute(d)
		all[d].hidden, err4 = page.Hidden(d)
		if err = cmp.Or(err, err2, err3, err4); err != nil {
			return all, 0, err
		}
		if all[d].total > 0 {
			known++
		}
	}
	return all, known, nil
}

// applyLimits changes a job's limits, for ration limit, ration top and the page. It checks the
// whole change before it writes any part.
func applyLimits(s machine.Job, change limit.Limits) (out appliedLimits, err error) {
	page, operator, done, err := openLimits(s)
	if err != nil {
		return out, statusError{err, ExitOpen}
	}
	defer done()
	var run *partPage
	if job.IsRun(s.Path) && job.PolicyInForce() && os.Geteuid() == 0 {
		run = &partPage{limitPage: page}
		page = run
	}
	before, known, err := readPage(page)
	if err != nil {
		return out, err
	}
	out.before = limitsOf(before, known, operator, s)
	var closed []int // devices that the job is not for: only their numbers open them
	unused := change.HasDefault()
	for d := range abi.Devices {
		_, has := out.before[d]
		isClosed := has && before[d].memory.Limited() && before[d].memory.Bytes() == 0
		byDefault := has && !isClosed && change.AppliesByDefault(d)
		if isClosed && !change.Names(d) {
			closed = append(closed, d)
		}
		if change.Names(d) || byDefault {
			out.devices = append(out.devices, d)
		}
		unused = unused && !byDefault
	}
	if len(closed) > 0 && unused && s.RationLent {
		return out, usageError("the ration of %s is lent while the job sleeps: it has its limits again when it wakes (change its rule, or wake it first)", s.Title())
	}
	if len(closed) > 0 && unused {
		return out, usageError("a limit without a device changes none here: %s is not for %s (name the device to open it, as in %d=10g)",
			s.Title(), devicesText(closed), closed[0])
	}
	if len(out.devices) == 0 {
		return out, usageError("%s has no limits and uses no device yet (name one: --device 0)", s.Title())
	}
	var steps []func() error
	for _, d := range out.devices {
		if before[d].hidden {
			return out, usageError("device %d: %s is not on it (ration why says on which, and why)", d, s.Title())
		}
		if before[d].total == 0 && known > 0 {
			return out, usageError("device %d: the job has no such device (ration ps %s shows its devices)", d, node.ShownName(&s))
		}
		more, err := planChange(page, d, before[d], change)
		if err != nil {
			return out, err
		}
		steps = append(steps, more...)
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return out, changeError(s, err)
		}
	}
	if run != nil {
		if err := policy.Resize(s.Path, run.changes...); err != nil {
			return out, changeError(s, err)
		}
	}
	job.QueueChanged() // a lower limit makes room
	after, known, err := readPage(page)
	out.after = limitsOf(after, known, operator, s)
	return out, err
}

// changeError adds to the error of a change what was to be changed, and the way out.
func changeError(s machine.Job, err error) error {
	if errors.Is(err, region.ErrReadOnly) && s.Path == job.OfUserPath(os.Getuid()) {
		return fmt.Errorf("changing the limit of %s: only root can (ration policy ask --mem asks for another ration, and --priority for another priority)", s.Title())
	}
	if uid, is := job.PolicyUser(s.Path); errors.Is(err, region.ErrReadOnly) && is && uid == os.Getuid() {
		return fmt.Errorf("changing the limit of %s: only root can (start it again with another --mem)", s.Title())
	}
	err = fmt.Errorf("changing the limit of %s: %w", s.Title(), err)
	if errors.Is(err, region.ErrReadOnly) || errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w (run it as the owner of that file)", err)
	}
	return err
}

// openLimits opens a job's limits. operator is true if they are in an operator's file. That file
// does not depend on the region, which the job can write.
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

// limitsOf returns the devices that a limit for all devices applies to: those with a limit and,
// unless the limits are in an operator's file, those in use. Once the size of one device is known,
// a number without a size has no device, even if the region says that it was used.
func limitsOf(page [abi.Devices]deviceLimits, known int, operator bool, s machine.Job) map[int]machine.Device {
	all := map[int]machine.Device{}
	if !operator {
		all = byDevice(s)
	}
	for d, has := range page {
		of := all[d].Compute
		if of == nil && has.compute.Set() {
			of = &machine.Compute{Share: has.compute.Share, Max: has.compute.Max, Round: has.compute.Round}
		}
		if has.memory.IsSet() || of != nil || operator && has.total > 0 {
			all[d] = machine.Device{Device: d, Limited: has.memory.Limited(), Limit: has.memory.Bytes(), Total: has.total, Compute: of}
		}
	}
	empty := operator && len(all) == 0 // the file has no limit yet, so a limit for all applies to each device
	for d := range page {
		if empty {
			all[d] = machine.Device{Device: d}
		}
		if known > 0 && page[d].total == 0 || page[d].hidden {
			delete(all, d)
		}
	}
	return all
}

// devicesText names devices in a sentence.
func devicesText(devices []int) string {
	what := "device "
	if len(devices) > 1 {
		what = "devices "
	}
	return what + humanfmt.Ranges(devices, ", ", "-")
}

func byDevice(s machine.Job) map[int]machine.Device {
	devices := map[int]machine.Device{}
	for _, d := range s.Devices {
		devices[d.Device] = d
	}
	return devices
}

// planChange checks a change of one device's limits, and returns the steps.
func planChange(page limitPage, device int, has deviceLimits, change limit.Limits) (steps []func() error, err error) {
	if want := change.Memory.For(device); want.IsSet() {
		l, err := newLimit(device, has.total, want)
		if err != nil {
			return nil, err
		}
		steps = append(steps, func() error { return page.SetLimit(device, l) })
	}
	share, most := change.Compute.For(device), change.ComputeMax.For(device)
	if share.IsSet() {
		has.compute.Share = share.Percent()
		steps = append(steps, func() error { return page.SetCompute(device, uint64(share)) })
	}
	if most.IsSet() {
		has.compute.Max = most.Percent()
		steps = append(steps, func() error { return page.SetComputeMax(device, uint64(most)) })
	}
	if c := has.compute; (share.IsSet() || most.IsSet()) && c.Max != 0 && c.Share > c.Max {
		return nil, neverGetsShare(device, c.Share, c.Max)
	}
	return steps, nil
}

// newLimit converts a memory limit to the form of the region.
func newLimit(device int, total uint64, want limit.Memory) (abi.Limit, error) {
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

// wholeChange is a change of what is of the whole job, and of no device. What is 0 stays.
type wholeChange struct {
	priority limit.Priority
	wait     limit.WaitAlloc
}

func (c wholeChange) apply(s machine.Job) error {
	page, _, done, err := openLimits(s)
	if err != nil {
		return statusError{err, ExitOpen}
	}
	defer done()
	if c.priority != 0 {
		err = page.SetPriority(uint64(c.priority))
	}
	if err == nil && c.wait != 0 {
		err = page.SetWaitAlloc(uint64(c.wait))
	}
	if err != nil {
		return changeError(s, err)
	}
	return nil
}
