package limit

import (
	"errors"
	"fmt"
)

var (
	// ErrEmpty is returned for a setting that is there but holds nothing: it
	// is more likely a mistake in a script than a wish for no limit.
	ErrEmpty = errors.New("empty")

	// ErrSize is returned for text that is not a size.
	ErrSize = errors.New("not a size")

	// ErrOverflow is returned for a size of 2^64 bytes or more.
	ErrOverflow = errors.New("a size too large to count in 64 bits")

	// ErrPercent is returned for text that is not a percentage, or one out of
	// the range that makes sense where it stands.
	ErrPercent = errors.New("not a percentage in range")

	// ErrDevice is returned for text that is not a device index, or one past
	// the devices that a region has room for.
	ErrDevice = errors.New("not a device index")

	// ErrDuplicate is returned when one setting names a device, or the
	// default, twice.
	ErrDuplicate = errors.New("limit given twice")

	// ErrNoDevice is returned when a limit is for a device that is not there.
	ErrNoDevice = errors.New("no such device")

	// ErrNoMemory is returned when a percentage of a device comes to nothing,
	// because the size of the device is not known.
	ErrNoMemory = errors.New("a share of no memory")

	// ErrName is returned for text that is not a job name.
	ErrName = errors.New("not a job name")
)

// InputError says what is wrong with something a person wrote, where they
// wrote it, and what would have been right.
type InputError struct {
	Source string // the variable or flag it came from, if any
	Value  string // what it held, all of it
	Err    error  // what is wrong with it
	Use    string // what is accepted instead
}

func (e *InputError) Error() string {
	source := e.Source
	if source != "" {
		source += "="
	}
	return fmt.Sprintf("%s%q: %v (use %s)", source, e.Value, e.Err, e.Use)
}

func (e *InputError) Unwrap() error { return e.Err }
