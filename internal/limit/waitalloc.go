package limit

import (
	"strconv"
	"strings"
)

// WaitAlloc is for how long a request that does not fit waits for memory of its job, in milliseconds.
// Zero means not set.
type WaitAlloc uint32

// Values of a WaitAlloc. They equal abi.MaxWaitAlloc and abi.WaitAllocNone.
const (
	maxWaitAlloc            = 24 * 60 * 60 * 1000
	waitAllocNone WaitAlloc = 1<<32 - 1 // requests do not wait
)

var waitAllocUnits = map[string]uint64{"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}

// ParseWaitAlloc parses the value of source as a time: a number followed by ms, s, m or h; or none.
func ParseWaitAlloc(source, value string) (WaitAlloc, error) {
	w, err := parseWaitAlloc(value)
	if err == nil && w == 0 {
		err = errEmpty
	}
	if err != nil {
		return 0, &InputError{Source: source, Value: value, Err: err, Use: waitAllocUse}
	}
	return w, nil
}

// parseWaitAlloc reads what parse_wait_alloc in shim/limit_parse.c reads. An empty text sets nothing.
func parseWaitAlloc(s string) (WaitAlloc, error) {
	if s == "" {
		return 0, nil
	}
	if strings.EqualFold(s, "none") {
		return waitAllocNone, nil
	}
	digits, unit := cutDigits(s)
	n, err := strconv.ParseUint(digits, 10, 32)
	of := waitAllocUnits[unit]
	if err != nil || of == 0 || n == 0 || n > maxWaitAlloc/of {
		return 0, errRound
	}
	return WaitAlloc(n * of), nil
}

// String renders w for [ParseWaitAlloc].
func (w WaitAlloc) String() string {
	if w == waitAllocNone {
		return "none"
	}
	if w%1000 == 0 {
		return strconv.Itoa(int(w/1000)) + "s"
	}
	return strconv.Itoa(int(w)) + "ms"
}
