package region

import (
	"errors"
	"path/filepath"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"ration/internal/abi"
	"ration/internal/safepath"
)

// OperatorLimits is the file beside a region in which an operator keeps the limits. It is read and
// written without the region, so that a tenant's content of the region, or a lease on it, does not
// affect the operator's own file.
type OperatorLimits struct {
	region string // path of the region
	beside string // path of the file
	page   *abi.Limits
}

// OpenOperatorLimits reads the limits beside the region at path. The error is fs.ErrNotExist if
// there are none.
func OpenOperatorLimits(path string) (*OperatorLimits, error) {
	dir, err := safepath.OpenFolder(filepath.Dir(path))
	if err != nil {
		return nil, openError(path+LimitsSuffix, err)
	}
	defer unix.Close(dir)
	return OpenOperatorLimitsAt(dir, filepath.Base(path), path)
}

// LimitsBeside returns the limits that OpenOperatorLimits reads.
func LimitsBeside(path string) (out Limits, err error) {
	l, err := OpenOperatorLimits(path)
	if err != nil {
		return out, err
	}
	for d := range l.page.Device {
		on := &l.page.Device[d]
		out.Memory[d], out.Hidden[d] = abi.Limit(on.Memory), on.Hidden
		out.Compute[d], out.ComputeMax[d] = uint64(abi.Percent(on.Compute)), uint64(abi.Percent(on.ComputeMax))
	}
	out.Priority = l.Priority()
	return out, nil
}

// OpenOperatorLimitsAt is OpenOperatorLimits for a region in a folder, given the folder's descriptor. path is for
// messages, and for changes.
func OpenOperatorLimitsAt(dir int, name, path string) (*OperatorLimits, error) {
	l := &OperatorLimits{region: path, beside: path + LimitsSuffix}
	fd, err := safepath.OpenAt(dir, name+LimitsSuffix, unix.O_RDONLY, 0)
	if err != nil {
		return nil, openError(l.beside, err)
	}
	defer unix.Close(fd)
	l.page, err = checkLimits(fd, l.beside, func() (uint32, error) { return ownerIn(dir, name), nil })
	return l, err
}

// ownerIn returns the user that owns a region; root if there is no region.
func ownerIn(dir int, name string) uint32 {
	var st unix.Stat_t
	if safepath.StatAt(dir, name, &st) != nil {
		return 0
	}
	return st.Uid
}

// owner returns the user that owns the region, as ownerIn does.
func (l *OperatorLimits) owner() (uint32, error) {
	dir, err := safepath.OpenFolder(filepath.Dir(l.region))
	if err != nil {
		return 0, err
	}
	defer unix.Close(dir)
	return ownerIn(dir, filepath.Base(l.region)), nil
}

// Limit returns a device's limit as of the last read or change.
func (l *OperatorLimits) Limit(device int) (abi.Limit, error) {
	if err := checkDevice(device); err != nil {
		return 0, err
	}
	return abi.Limit(l.page.Device[device].Memory), nil
}

// Total returns the size of a device in bytes; 0 if unknown.
func (l *OperatorLimits) Total(device int) (uint64, error) {
	if err := checkDevice(device); err != nil {
		return 0, err
	}
	return l.page.Device[device].Total, nil
}

// UUID returns the UUID of a device; zero if unknown.
func (l *OperatorLimits) UUID(device int) ([2]uint64, error) {
	if err := checkDevice(device); err != nil {
		return [2]uint64{}, err
	}
	return l.page.Device[device].UUID, nil
}

// Compute returns a device's share and cap as of the last read or change. It does not have the used
// time.
func (l *OperatorLimits) Compute(device int) (Compute, error) {
	if err := checkDevice(device); err != nil {
		return Compute{}, err
	}
	on := &l.page.Device[device]
	return Compute{Share: abi.Percent(on.Compute), Max: abi.Percent(on.ComputeMax), Round: abi.RoundOf(l.page.Round)}, nil
}

// Hidden reports whether the job's processes do not see a device.
func (l *OperatorLimits) Hidden(device int) (bool, error) {
	if err := checkDevice(device); err != nil {
		return false, err
	}
	return l.HiddenBy(device) != 0, nil
}

// HiddenBy returns the word of Limits.Hidden for a device that exists.
func (l *OperatorLimits) HiddenBy(device int) uint64 { return l.page.Device[device].Hidden }

// SetLimit changes a device's limit for every request from now on.
func (l *OperatorLimits) SetLimit(device int, limit abi.Limit) error {
	return l.set(device, uint64(limit), memoryWord)
}

// SetCompute changes a device's share: 1 to 100, or abi.ComputeNone.
func (l *OperatorLimits) SetCompute(device int, share uint64) error {
	return l.set(device, share, computeWord)
}

// SetComputeMax changes a device's cap: 1 to 100, or abi.ComputeNone.
func (l *OperatorLimits) SetComputeMax(device int, most uint64) error {
	return l.set(device, most, computeMaxWord)
}

// Priority returns the job's priority as of the last read or change.
func (l *OperatorLimits) Priority() uint64 { return abi.PriorityOf(l.page.Priority) }

// SetPriority changes the job's priority: abi.PriorityHigh to abi.PriorityLow.
func (l *OperatorLimits) SetPriority(priority uint64) error {
	return l.change(changePriority(priority))
}

func (l *OperatorLimits) set(device int, value uint64, word limitWord) error {
	if err := checkDevice(device); err != nil {
		return err
	}
	return l.change(word.change(device, value))
}

// change changes the file and the copy of it.
func (l *OperatorLimits) change(set func(*abi.Limits) error) (err error) {
	fd, err := openBesideForWriting(l.beside, l.owner)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	page, mem, err := mapLimits(fd, 0, true)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(mem) }()
	r := Region{path: l.beside}
	before := debug.SetPanicOnFault(true)
	defer func() { r.recovered(recover(), &err, before, mem) }()
	if err := set(page); err != nil {
		return err
	}
	return set(l.page)
}

// End sets all limits to zero, because the file is about to be removed. Otherwise an unknown
// process of the job could use this limit beside that of the next job.
func (l *OperatorLimits) End() (err error) {
	for d := range abi.Devices {
		err = errors.Join(err, l.SetLimit(d, abi.MakeLimit(0)))
	}
	return err
}
