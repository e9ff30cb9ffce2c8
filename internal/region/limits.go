package region

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path/filepath"
	"runtime/debug"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"ration/internal/abi"
	"ration/internal/safepath"
)

// Limits are words that any process may set if they are not set yet, and that only the owner of the
// file may change later. They are on a page of their own: inside the region if a job makes its own
// limits, or in a file beside it that an operator owns and the job can only read.

// openLimits finds the page of limits that applies to this region.
func (r *Region) openLimits() error {
	r.limits, r.limitsAt = &r.m.Limits, r.path
	fd, beside, err := r.openBeside()
	if err != nil || fd < 0 {
		return err
	}
	defer unix.Close(fd) // no locks are held through this descriptor
	if _, err := checkLimits(fd, beside, r.owner); err != nil {
		return err
	}
	limits, mem, err := mapLimits(fd, 0, false)
	if err != nil {
		return fmt.Errorf("limits %s: %w", beside, err)
	}
	r.limits, r.limitsMem, r.limitsAt = limits, mem, beside
	return nil
}

// openBeside opens the file with an operator's limits. fd is -1 if there is none. If the file
// exists, it always applies. The region can only tell that a missing file has existed; anything
// else there could have been written by the job.
func (r *Region) openBeside() (fd int, path string, err error) {
	path = r.path + LimitsSuffix
	if r.dir != nil {
		if fd, err = safepath.OpenAt(*r.dir, filepath.Base(path), unix.O_RDONLY, 0); err != nil {
			err = openError(path, err)
		}
	} else {
		fd, err = openNoFollow(path, false, false, 0)
	}
	switch {
	case err == nil:
		return fd, path, nil
	case !errors.Is(err, fs.ErrNotExist):
		return -1, path, fmt.Errorf("region %s: %w: %w", r.path, ErrLimits, err)
	case atomic.LoadUint32(&r.m.Header.Flags) == abi.LimitsBeside:
		return -1, path, fmt.Errorf("region %s: %w: %s is missing (an operator put it there; put it back, or remove the region)", r.path, ErrLimits, path)
	}
	return -1, path, nil
}

// owner returns the user that owns the region's file.
func (r *Region) owner() (uid uint32, err error) {
	var st unix.Stat_t
	err = unix.Fstat(r.file.number(), &st)
	return st.Uid, err
}

// checkLimits refuses a file that has no limits, or that another user made. It must belong to root
// or to the region's owner, and no other user may write it. It returns the content.
func checkLimits(fd int, path string, owner func() (uint32, error)) (*abi.Limits, error) {
	var l abi.Limits
	var st unix.Stat_t
	uid, err := owner()
	if err := errors.Join(err, unix.Fstat(fd, &st)); err != nil {
		return nil, fmt.Errorf("looking at %s: %w", path, err)
	}
	if st.Uid != 0 && st.Uid != uid || st.Mode&0o022 != 0 {
		return nil, fmt.Errorf("limits %s: %w: they belong to user %d with mode %#o (they must be root's or the region's owner's, and writable by nobody else)",
			path, ErrLimits, st.Uid, st.Mode&0o7777)
	}
	if n, err := unix.Pread(fd, bytesOf(&l), 0); err != nil || st.Size != limitsSize || int64(n) != limitsSize {
		return nil, fmt.Errorf("limits %s: %w: %d bytes where %d belong (write it again)", path, ErrLimits, st.Size, limitsSize)
	}
	if l.Magic != abi.LimitsMagic || l.Version != abi.Version {
		return nil, fmt.Errorf("limits %s: %w: not written by this version of ration (write it again)", path, ErrLimits)
	}
	return &l, nil
}

// initLimits writes the limits inside the region: its identity, and then the limits of this
// process.
func (r *Region) initLimits(l Limits) error {
	return r.withLimits(r.path, func(page *abi.Limits) error {
		atomic.CompareAndSwapUint32(&page.Version, 0, abi.Version)
		atomic.CompareAndSwapUint64(&page.Size, 0, uint64(limitsSize))
		atomic.CompareAndSwapUint64(&page.Magic, 0, abi.LimitsMagic)
		offer(page, l)
		return nil
	})
}

// offerLimits sets limits that no process has set yet. So a first process that knew no limits does
// not make the job unlimited. It does not change an operator's limits.
func (r *Region) offerLimits(l Limits) error {
	if r.limitsMem != nil {
		return nil
	}
	missing := false
	for word, value := range l.words(r.limits) {
		missing = missing || value != 0 && atomic.LoadUint64(word) == 0
	}
	if !missing {
		return nil
	}
	return r.withLimits(r.path, func(page *abi.Limits) error { offer(page, l); return nil })
}

// offer sets each limit that is still zero. It swaps and does not store: if two processes bring
// different limits the first one wins, even if the other was stopped here for an hour.
func offer(page *abi.Limits, l Limits) {
	for word, value := range l.words(page) {
		if value != 0 {
			atomic.CompareAndSwapUint64(word, 0, value)
			point(abi.InitLimits)
		}
	}
}

// words pairs each word of a page with the new value for it; zero means none.
func (l *Limits) words(page *abi.Limits) iter.Seq2[*uint64, uint64] {
	return func(yield func(*uint64, uint64) bool) {
		for d := range page.Device {
			on := &page.Device[d]
			if !yield(&on.Memory, uint64(l.Memory[d])) || !yield(&on.Compute, l.Compute[d]) || !yield(&on.ComputeMax, l.ComputeMax[d]) || !yield(&on.Hidden, l.Hidden[d]) {
				return
			}
		}
		_ = yield(&page.Round, l.Round) && yield(&page.Priority, l.Priority) && yield(&page.WaitAlloc, l.WaitAlloc)
	}
}

// withLimits maps the page of limits for writing while change runs.
func (r *Region) withLimits(path string, change func(*abi.Limits) error) (err error) {
	var fd int
	offset := int64(0)
	if path == r.path {
		f, err := openFile(path, true, false, 0)
		if err != nil {
			return err
		}
		defer f.close()
		if f != r.file {
			return fmt.Errorf("region %s: %w: another file is there now", r.path, ErrDamaged)
		}
		if fd, err = f.descriptor(); err != nil {
			return err
		}
		offset = limitsOffset
	} else {
		if fd, err = openBesideForWriting(path, r.owner); err != nil {
			return err
		}
		defer unix.Close(fd)
	}
	page, mem, err := mapLimits(fd, offset, true)
	if err != nil {
		return fmt.Errorf("limits %s: %w", path, err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	before := debug.SetPanicOnFault(true)
	defer func() { r.recovered(recover(), &err, before, mem) }()
	return change(page)
}

// openBesideForWriting opens an operator's limits to change them.
func openBesideForWriting(path string, owner func() (uint32, error)) (fd int, err error) {
	if fd, err = openNoFollow(path, true, false, 0); err != nil {
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
			return -1, fmt.Errorf("limits %s: %w (they belong to an operator)", path, ErrReadOnly)
		}
		return -1, err
	}
	if _, err := checkLimits(fd, path, owner); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func checkDevice(device int) error {
	if uint(device) < abi.Devices {
		return nil
	}
	return fmt.Errorf("device %d: %w (a region has devices 0 to %d)", device, ErrDevice, abi.Devices-1)
}

// Limit returns a device's current limit.
func (r *Region) Limit(device int) (abi.Limit, error) {
	return lookAt(r, device, func() abi.Limit { return abi.Limit(atomic.LoadUint64(&r.limits.Device[device].Memory)) })
}

// Hidden reports whether the job's processes do not see a device.
func (r *Region) Hidden(device int) (bool, error) {
	return lookAt(r, device, func() bool { return atomic.LoadUint64(&r.limits.Device[device].Hidden) != 0 })
}

// Total returns the size of a device in bytes; 0 until a process of the job has found it out.
func (r *Region) Total(device int) (uint64, error) {
	return lookAt(r, device, func() uint64 { return possible(atomic.LoadUint64(&r.limits.Device[device].Total), maxBytes) })
}

// SetLimit changes a device's limit for every request from now on. Memory beyond it stays held.
func (r *Region) SetLimit(device int, limit abi.Limit) error {
	return r.setLimit(device, uint64(limit), memoryWord)
}

// SetCompute changes a device's share: 1 to 100, or abi.ComputeNone.
func (r *Region) SetCompute(device int, share uint64) error {
	return r.setLimit(device, share, computeWord)
}

// SetComputeMax changes a device's cap: 1 to 100, or abi.ComputeNone.
func (r *Region) SetComputeMax(device int, most uint64) error {
	return r.setLimit(device, most, computeMaxWord)
}

// setLimit changes one word of a device's limits.
func (r *Region) setLimit(device int, value uint64, word limitWord) error {
	if err := checkDevice(device); err != nil {
		return err
	}
	return r.changeLimits(word.change(device, value))
}

// SetPriority changes the job's priority: abi.PriorityHigh to abi.PriorityLow.
func (r *Region) SetPriority(priority uint64) error { return r.changeLimits(changePriority(priority)) }

// Priority returns the job's priority.
func (r *Region) Priority() (uint64, error) {
	return look(r, func() uint64 { return abi.PriorityOf(atomic.LoadUint64(&r.limits.Priority)) })
}

// changeLimits changes the page of limits.
func (r *Region) changeLimits(set func(*abi.Limits) error) (err error) {
	defer r.guard(&err, debug.SetPanicOnFault(true))
	if err := r.whole(); err != nil {
		return err
	}
	switch {
	case r.file == nil: // over a heap
		return set(r.limits)
	case !r.writable && !r.setsLimits:
		return fmt.Errorf("region %s: %w", r.path, ErrReadOnly)
	}
	return r.withLimits(r.limitsAt, set)
}

// limitWord is one word of a device's limits.
type limitWord func(*abi.DeviceLimits) *uint64

func memoryWord(on *abi.DeviceLimits) *uint64     { return &on.Memory }
func computeWord(on *abi.DeviceLimits) *uint64    { return &on.Compute }
func computeMaxWord(on *abi.DeviceLimits) *uint64 { return &on.ComputeMax }

// change returns the function that sets the word of a device on a page.
func (word limitWord) change(device int, value uint64) func(*abi.Limits) error {
	return func(page *abi.Limits) error { return changeWord(page, word(&page.Device[device]), value) }
}

// changePriority returns the function that sets the priority on a page.
func changePriority(priority uint64) func(*abi.Limits) error {
	return func(page *abi.Limits) error { return changeWord(page, &page.Priority, priority) }
}

func changeWord(page *abi.Limits, word *uint64, value uint64) error {
	atomic.StoreUint64(word, value)
	point(abi.LimitSet)
	atomic.AddUint64(&page.Changes, 1)
	return nil
}

// Differences returns the devices whose limits in the region differ from those of this process.
func (r *Region) Differences(own Limits) ([]int, error) {
	return look(r, func() (devices []int) {
		differs := func(word *uint64, own uint64) bool { return own != 0 && atomic.LoadUint64(word) != own }
		for d := range own.Memory {
			on := &r.limits.Device[d]
			if differs(&on.Memory, uint64(own.Memory[d])) || differs(&on.Compute, own.Compute[d]) || differs(&on.ComputeMax, own.ComputeMax[d]) {
				devices = append(devices, d)
			}
		}
		return devices
	})
}

// WriteLimitsFile writes an operator's limits beside the region at path, before the job starts. The
// file appears complete or not at all.
func WriteLimitsFile(path string, l Limits) error {
	beside := path + LimitsSuffix
	page := abi.Limits{Magic: abi.LimitsMagic, Version: abi.Version, Size: uint64(limitsSize)}
	offer(&page, l)
	if err := safepath.Replace(beside, bytesOf(&page), 0o644); err != nil {
		return fmt.Errorf("writing limits %s: %w", beside, err)
	}
	return nil
}
