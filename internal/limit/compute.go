package limit

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

// Round is the time that the slices of a device's jobs last together where their shares
// add up to 100 per cent, in microseconds. Zero is not set.
type Round uint32

// Bounds of a round. They equal abi.MinRound and abi.MaxRound.
const (
	MinRound Round = 1_000
	MaxRound Round = 200_000
)

// ErrRound is returned for text that is not a round, or one that is out of bounds.
var ErrRound = errors.New("not a time in range")

const roundUse = "a time from 1ms to 200ms, like 10ms; or microseconds, like 10000"

// ParseRound reads a round: a number followed by ms or us, or plain microseconds. Errors
// call the value source.
func ParseRound(source, value string) (Round, error) {
	r, err := parseRound(value)
	if err != nil {
		return 0, &InputError{Source: source, Value: value, Err: err, Use: roundUse}
	}
	return r, nil
}

func parseRound(s string) (Round, error) {
	if s == "" {
		return 0, ErrEmpty
	}
	digits, unit := cutDigits(s)
	n, err := strconv.ParseUint(digits, 10, 32)
	switch {
	case err != nil:
		return 0, ErrRound
	case unit == "ms" && n <= uint64(MaxRound):
		n *= 1000
	case unit != "" && unit != "us":
		return 0, ErrRound
	}
	if n < uint64(MinRound) || n > uint64(MaxRound) {
		return 0, ErrRound
	}
	return Round(n), nil
}

// String renders r for people and for [ParseRound]: 10ms, 2500us.
func (r Round) String() string {
	if r%1000 == 0 {
		return strconv.Itoa(int(r/1000)) + "ms"
	}
	return strconv.Itoa(int(r)) + "us"
}

// Duration returns r as a time.
func (r Round) Duration() time.Duration { return time.Duration(r) * time.Microsecond }

// policy is what HAMi-core's compute limit is.
type policy int

const (
	policyShare policy = iota
	policyCap
	policyNeither
)

// ErrPolicy is returned for a policy of HAMi-core that does not exist.
var ErrPolicy = errors.New("not a policy")

const policyUse = "default for a share, force for a cap, or disable for neither"

// parsePolicy reads HAMi-core's policy, in either case, as HAMi-core does.
func parsePolicy(s string) (policy, error) {
	switch strings.ToLower(s) {
	case "", "default":
		return policyShare, nil
	case "force":
		return policyCap, nil
	case "disable":
		return policyNeither, nil
	}
	return policyShare, ErrPolicy
}

// ErrMode is returned for a value of EnvMode other than strict.
var ErrMode = errors.New("not a mode")

const (
	modeStrict = "strict"
	modeUse    = "strict, or leave it out"
)

func parseMode(s string) (strict bool, err error) {
	if s != "" && s != modeStrict {
		return false, ErrMode
	}
	return s == modeStrict, nil
}
