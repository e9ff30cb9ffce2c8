package limit

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// Percent is a percentage from 0 to 100, counted in ten-thousandths of a percent, so that 12.5%
// and 33.3333% are exact.
type Percent uint32

const (
	percentPlaces         = 4
	onePercent    Percent = 10_000
	whole                 = 100 * onePercent
)

// parsePercent reads a percentage with up to four decimals, with or without a percent sign.
func parsePercent(s string) (Percent, error) {
	if s == "" {
		return 0, errEmpty
	}
	units, fraction, sign, ok := cutNumber(s)
	if !ok || sign != "" && sign != "%" || len(fraction) > percentPlaces {
		return 0, errPercent
	}
	fraction += strings.Repeat("0", percentPlaces-len(fraction))
	n, err := strconv.ParseUint(units+fraction, 10, 32)
	if err != nil || Percent(n) > whole {
		return 0, errPercent
	}
	return Percent(n), nil
}

// String renders p with a percent sign: 25%, 12.5%.
func (p Percent) String() string {
	return decimal(Size(p/onePercent), Size(p%onePercent), percentPlaces) + "%"
}

// Of returns p of s, rounded down.
func (p Percent) Of(s Size) Size {
	hi, lo := bits.Mul64(uint64(s), uint64(min(p, whole)))
	share, _ := bits.Div64(hi, lo, uint64(whole))
	return Size(share)
}

// Memory is a limit on the memory of one device: a number of bytes, a percentage of the device, or
// none. The zero value is "not set": it limits nothing either, but a default replaces it.
type Memory struct {
	size  Size
	share Percent // of the device
	none  bool    // set to no limit
}

// MemorySize returns a limit of s bytes; 0 means no limit.
func MemorySize(s Size) Memory { return Memory{size: s, none: s == 0} }

// parseMemory parses a limit: a size, a percentage of the device from 1% to 100%, or 0, none or
// unlimited. 0 means no limit, as in HAMi-core, whose settings are parsed here too.
func parseMemory(s string) (Memory, error) {
	if isNone(s) {
		return MemorySize(0), nil
	}
	if strings.HasSuffix(s, "%") {
		share, err := parsePercent(s)
		if err != nil || share < onePercent {
			return Memory{}, errPercent
		}
		return Memory{share: share}, nil
	}
	size, err := parseSize(s)
	if err != nil {
		return Memory{}, err
	}
	return MemorySize(size), nil
}

// IsSet reports whether the limit is set, even if to none.
func (m Memory) IsSet() bool { return m != Memory{} }

// Of returns the limit in bytes on a device with total bytes; 0 means no limit. It does not reduce
// a size above the total. For a percentage of an unknown total it returns [ErrNoMemory], because 0
// would mean no limit.
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

// String formats m in the input grammar; a limit that is not set is "unset".
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

func (m Memory) words() string {
	if m.size != 0 {
		return m.size.Words()
	}
	return m.String()
}

// Least is the smallest limit that is accepted. Not even a context fits into less, and 10 would
// mean 10 bytes.
const Least = MiB

// CheckLeast returns an error for a limit below [Least]. source and value are for the message. 0
// means no limit.
func CheckLeast(size Size, source, value string) error {
	if size == 0 || size >= Least {
		return nil
	}
	return &InputError{Source: source, Value: value, Err: fmt.Errorf("%v is less than any program needs", size), Use: "a number with m or g, like 10g"}
}

// Compute is a share of one device's time or a cap on it, in whole per cent, as stored in a region.
// As with [Memory], the zero value is not set.
type Compute uint8

// computeNone is a share or a cap that is set to none. It equals abi.ComputeNone.
const computeNone Compute = 255

// ComputePercent returns a limit of n per cent. It treats n above 100 as 100, and 0 or less as no
// limit.
func ComputePercent(n int) Compute {
	if n <= 0 {
		return computeNone
	}
	return Compute(min(n, 100))
}

// parseCompute reads a limit: 1 to 100, with or without a percent sign, or 0, none or unlimited.
func parseCompute(s string) (Compute, error) {
	if isNone(s) {
		return computeNone, nil
	}
	p, err := parsePercent(s)
	if err != nil {
		return 0, err
	}
	if p%onePercent != 0 {
		return 0, errPercent
	}
	return ComputePercent(int(p / onePercent)), nil
}

// IsSet reports whether the limit is set, even if to none.
func (c Compute) IsSet() bool { return c != 0 }

// Percent returns the limit as a whole number from 1 to 100; 0 means no limit.
func (c Compute) Percent() int {
	if c == computeNone {
		return 0
	}
	return int(c)
}

// String formats c in the input grammar; a limit that is not set is "unset".
func (c Compute) String() string {
	switch c {
	case 0:
		return "unset"
	case computeNone:
		return "none"
	}
	return strconv.Itoa(int(c)) + "%"
}

func (c Compute) words() string { return c.String() }

func isNone(s string) bool {
	return strings.EqualFold(s, "none") || strings.EqualFold(s, "unlimited")
}
