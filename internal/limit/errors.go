package limit

import (
	"errors"
	"fmt"
)

var (
	// ErrName is returned for text that is not a job name.
	ErrName = errors.New("not a job name")

	// ErrNoMemory is returned for a percentage of a device whose size is unknown.
	ErrNoMemory = errors.New("a share of no memory")

	errEmpty     = errors.New("empty") // probably a mistake in a script, not a request for no limit
	errSize      = errors.New("not a size")
	errOverflow  = errors.New("a size too large to count in 64 bits")
	errPercent   = errors.New("not a percentage in range")
	errRound     = errors.New("not a time in range")
	errPriority  = errors.New("not a priority")
	errPolicy    = errors.New("not a policy")
	errMode      = errors.New("not a mode")
	errDevice    = errors.New("not a device index")
	errNothing   = errors.New("not a limit; none means no limit")
	errNoSize    = errors.New("a device without a size")
	errDuplicate = errors.New("limit given twice")
	errNoDevice  = errors.New("no such device")
	errTwoWays   = errors.New("two ways to name a device (use one of them)")
)

// Hints of error messages.
const (
	sizeUse      = "bytes or a number with k, m, g or t, like 10g, 1024m or 1.5g"
	memoryUse    = sizeUse + "; or a percentage from 1 to 100, like 25%"
	computeUse   = "a whole percentage from 1 to 100, like 30 or 30%; or 0 for no limit"
	priorityUse  = "high, normal or low"
	waitAllocUse = "a time from 1ms to 24h such as 500ms, 30s or 5m, or none"
	roundUse     = "a time from 1ms to 200ms, like 10ms; or microseconds, like 10000"
	policyUse    = "default for a share, force for a cap, or disable for neither"
	modeUse      = "strict, or leave it out"
	deviceUse    = "a device from 0 to 15"
	nameUse      = "1 to 63 letters, digits, '.', '_' or '-', the first not '.' or '-'"
)

// InputError is an error in a user's setting: its source, and what to use instead.
type InputError struct {
	Source string // variable or flag, if any
	Value  string // the whole setting
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
