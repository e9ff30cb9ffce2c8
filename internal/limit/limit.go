package limit

import (
	"fmt"
	"strings"
)

const memoryUse = sizeUse + "; or a percentage from 1 to 100, like 25%"

// Memory is a limit on the memory of one device: a number of bytes, a share of the
// device, or none. The zero value is not set: it limits nothing either, but unlike
// [NoMemoryLimit] a default takes its place.
type Memory struct {
	size  Size
	share Percent // of the device
	none  bool    // set to no limit
}

// NoMemoryLimit is a limit that is set to none.
var NoMemoryLimit = Memory{none: true}

// MemorySize returns a limit of s bytes; 0 is no limit.
func MemorySize(s Size) Memory {
	return Memory{size: s, none: s == 0}
}

// ParseMemory reads a limit: a size as [ParseSize] takes it, a percentage of
// the device from 1% to 100%, or 0, none or unlimited. 0 is no limit as in HAMi-core,
// whose settings are read here too.
func ParseMemory(s string) (Memory, error) {
	limit, err := parseMemory(s)
	if err != nil {
		return Memory{}, &InputError{Value: s, Err: err, Use: memoryUse}
	}
	return limit, nil
}

func parseMemory(s string) (Memory, error) {
	if isNone(s) {
		return NoMemoryLimit, nil
	}
	if strings.HasSuffix(s, "%") {
		share, err := parsePercent(s)
		if err != nil || share < OnePercent {
			return Memory{}, ErrPercent
		}
		return Memory{share: share}, nil
	}
	size, err := parseSize(s)
	if err != nil {
		return Memory{}, err
	}
	return MemorySize(size), nil
}

// IsSet reports whether the limit is set, if only to none.
func (m Memory) IsSet() bool { return m != Memory{} }

// Of returns the limit in bytes on a device with total bytes; 0 is no limit. It does
// not reduce a size above the total. A share of a device whose total is not known is
// [ErrNoMemory], since 0 would be no limit.
func (m Memory) Of(total Size) (Size, error) {
	if m.share == 0 {
		return m.size, nil
	}
	size := m.share.Of(total)
	if size == 0 {
		return 0, fmt.Errorf("%v of %v: %w (is the device's size known?)", m.share, total, ErrNoMemory)
	}
	return size, nil
}

// String renders m so that [ParseMemory] reads it back; a limit that is not
// set is "unset".
func (m Memory) String() string {
	switch {
	case m.none:
		return "none"
	case m.share != 0:
		return m.share.String()
	case m.size != 0:
		return m.size.Exact()
	}
	return "unset"
}

const computeUse = "a whole percentage from 1 to 100, like 30 or 30%; or 0 for no limit"

// Compute is a share of one device's time or a cap on it: a whole percentage, or none. As
// with [Memory], the zero value is not set.
type Compute struct {
	percent uint8 // 1 to 100
	none    bool  // set to no limit
}

// NoComputeLimit is a limit that is set to none.
var NoComputeLimit = Compute{none: true}

// ParseCompute reads a limit: 1 to 100, with or without a percent sign, or 0,
// none or unlimited.
func ParseCompute(s string) (Compute, error) {
	limit, err := parseCompute(s)
	if err != nil {
		return Compute{}, &InputError{Value: s, Err: err, Use: computeUse}
	}
	return limit, nil
}

func parseCompute(s string) (Compute, error) {
	if isNone(s) {
		return NoComputeLimit, nil
	}
	p, err := parsePercent(s)
	if err != nil {
		return Compute{}, err
	}
	if p%OnePercent != 0 {
		return Compute{}, ErrPercent
	}
	return Compute{percent: uint8(p / OnePercent), none: p == 0}, nil
}

// IsSet reports whether the limit is set, if only to none.
func (c Compute) IsSet() bool { return c != Compute{} }

// Percent returns the limit as a whole number from 1 to 100; 0 is no limit.
func (c Compute) Percent() int { return int(c.percent) }

// String renders c so that [ParseCompute] reads it back; a limit that is not
// set is "unset".
func (c Compute) String() string {
	switch {
	case c.none:
		return "none"
	case c.percent != 0:
		return (Percent(c.percent) * OnePercent).String()
	}
	return "unset"
}

func isNone(s string) bool {
	return strings.EqualFold(s, "none") || strings.EqualFold(s, "unlimited")
}
