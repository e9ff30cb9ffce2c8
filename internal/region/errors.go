package region

import (
	"errors"
	"fmt"

	"ration/internal/abi"
)

// Errors of opening a region. They are returned wrapped, with the path and what to do. After one of
// them the file is unchanged.
var (
	// ErrForeign is returned for a file that is not a region.
	ErrForeign = errors.New("not a ration region")
	// ErrVersion is returned for a region of another version of the layout.
	ErrVersion = errors.New("region of another version")
	// ErrSize is returned for a region that was cut short or made longer.
	ErrSize = errors.New("region has the wrong size")
	// ErrSymlink is returned when the last part of the path is a symbolic link.
	ErrSymlink = errors.New("region path is a symbolic link")
	// ErrNotRegular is returned for a directory, device, socket or pipe.
	ErrNotRegular = errors.New("region path is not a regular file")
	// ErrOwner is returned when the file belongs to neither this user nor root.
	ErrOwner = errors.New("region belongs to another user")
	// ErrNoSpace is returned when the file system cannot hold the region.
	ErrNoSpace = errors.New("no space for the region")
	// ErrInit is returned to a process that only reads, for a region that is not completely
	// initialised.
	ErrInit = errors.New("region is not ready")
	// ErrLimits is returned if the limits beside the region cannot be used.
	ErrLimits = errors.New("limits of the region cannot be used")
)

// Errors of using a region.
var (
	// ErrFull is returned when every slot belongs to a living process.
	ErrFull = errors.New("all slots are taken")
	// ErrLocked is returned if there are free slots, but a process that has not joined has locked
	// their bytes.
	ErrLocked = errors.New("no slot can be taken")
	// ErrRefused is returned, as a *RefusedError, for a charge beyond the limit.
	ErrRefused = errors.New("out of rationed memory")
	// ErrNotHeld is returned for a return of more than is held.
	ErrNotHeld = errors.New("returning more than is held")
	// ErrDevice is returned for a device number that a region does not support.
	ErrDevice = errors.New("no such device")
	// ErrUsed is returned by Save if a process uses the region.
	ErrUsed = errors.New("a process uses the region")
	// ErrEvicted is returned to an owner whose slot was given to another process.
	ErrEvicted = errors.New("slot was taken away")
	// ErrDamaged is returned if the file was cut short, or its content is impossible.
	ErrDamaged = errors.New("region is damaged")
	// ErrClosed is returned after Close or Leave.
	ErrClosed = errors.New("region is closed")
	// ErrReadOnly is returned for a change through a read-only region, or of limits that an
	// operator owns.
	ErrReadOnly = errors.New("region is open for reading only")
)

// Refusal is a request that was refused, and why.
type Refusal struct {
	Time   int64 // Unix nanoseconds
	Slot   int
	Device int
	PID    int        // PID of the requesting process, in its own PID namespace
	Asked  uint64     // bytes
	Held   uint64     // bytes granted on the device at that moment
	Limit  uint64     // bytes
	Own    uint64     // bytes held by the requesting process
	Top    []Holder   // the processes that held most, largest first
	Waited abi.Waited // how long it waited for memory of the job
}

// Holder is a process and its bytes.
type Holder struct {
	PID   int
	Bytes uint64
}

// RefusedError is a refused charge. It matches ErrRefused.
type RefusedError struct{ Refusal }

func (e *RefusedError) Error() string {
	free := uint64(0)
	if e.Limit > e.Held {
		free = e.Limit - e.Held
	}
	return fmt.Sprintf("device %d: %d bytes asked, %d free of a limit of %d: %v", e.Device, e.Asked, free, e.Limit, ErrRefused)
}

func (e *RefusedError) Unwrap() error { return ErrRefused }
