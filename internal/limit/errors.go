package limit

import (
	"errors"
	"fmt"
)

var (
	// ErrEmpty is returned for a setting with an empty value: that is more likely a
	// mistake in a script than a wish for no limit.
	ErrEmpty = errors.New("empty")

	// ErrSize is returned for text that is not a size.
	ErrSize = errors.New("not a size")

	// ErrOverflow is returned for a size of 2^64 bytes or more.
	ErrOverflow = errors.New("a size too large to count in 64 bits")

	// ErrPercent is returned for text that is not a percentage, or one that is out of
	// range.
	ErrPercent = errors.New("not a percentage in range")

	// ErrDevice is returned for text that is not a device index below [MaxDevices].
	ErrDevice = errors.New("not a device index")

	// ErrDuplicate is returned when one setting names a device, or the
	// default, twice.
	ErrDuplicate = errors.New("limit given twice")

	// ErrNoDevice is returned for a limit on a device that does not exist.
	ErrNoDevice = errors.New("no such device")

	// ErrNoMemory is returned for a percentage of a device whose size is not known.
	ErrNoMemory = errors.New("a share of no memory")

	// ErrName is returned for text that is not a job name.
	ErrName = errors.New("not a job name")
)

// InputError is an error in a setting of the user, with its source and what would be
// right.
type InputError struct {
	Source string // variable or flag, if any
	Value  string // of the whole setting
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
