// Package limit parses and formats sizes, limits, a job's settings and its name. It does no I/O.
// The library parses the same grammar in C (shim/limit_parse.c); both are tested with
// testdata/grammar.txt.
package limit

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// Size is a number of bytes.
type Size uint64

// Multiples are binary, as in HAMi-core, so that "10g" is the same number of bytes for ration and
// for HAMi-core.
const (
	KiB Size = 1 << (10 * (iota + 1))
	MiB
	GiB
	TiB
)

// ParseSize reads a size: plain bytes, or a number followed by k, m, g or t,
// in either case and optionally spelled out (10g, 10G, 10gb, 10GiB). A fraction is
// exact, and rounded down to whole bytes. Without a fraction the number may be hexadecimal (0x10g).
func ParseSize(s string) (Size, error) {
	size, err := parseSize(s)
	if err != nil {
		return 0, &InputError{Value: s, Err: err, Use: sizeUse}
	}
	return size, nil
}

func parseSize(s string) (Size, error) {
	if s == "" {
		return 0, errEmpty
	}
	if len(s) > 2 && s[0] == '0' && (s[1] == 'x' || s[1] == 'X') {
		return parseHexSize(s[2:])
	}
	whole, fraction, unit, ok := cutNumber(s)
	if !ok {
		return 0, errSize
	}
	scale, ok := parseUnit(unit)
	if !ok || fraction != "" && scale == 1 {
		return 0, errSize
	}
	n, err := strconv.ParseUint(whole, 10, 64)
	if err != nil {
		return 0, errOverflow
	}
	over, bytes := bits.Mul64(n, uint64(scale))
	if over != 0 {
		return 0, errOverflow
	}
	// This cannot overflow: bytes is a multiple of scale, and the fraction is less than
	// scale.
	size := Size(bytes) + scale.fraction(fraction)
	if size == 0 && strings.Trim(fraction, "0") != "" {
		// 0 means no limit, so a tiny limit must not become 0.
		return 0, errSize
	}
	return size, nil
}

// parseHexSize reads a size whose number is hexadecimal, as HAMi-core has read it: 0x40000000,
// 0x10g.
func parseHexSize(s string) (Size, error) {
	digits := s[:len(s)-len(strings.TrimLeft(s, "0123456789abcdefABCDEF"))]
	scale, ok := parseUnit(s[len(digits):])
	if digits == "" || !ok {
		return 0, errSize
	}
	n, err := strconv.ParseUint(digits, 16, 64)
	over, bytes := bits.Mul64(n, uint64(scale))
	if err != nil || over != 0 {
		return 0, errOverflow
	}
	return Size(bytes), nil
}

// fraction returns 0.digits of s, rounded down. It works from the last digit to the first, so no
// intermediate value exceeds s*10. The result is exact, because rounding down in each step equals
// rounding down once.
func (s Size) fraction(digits string) Size {
	var part Size
	for i := len(digits) - 1; i >= 0; i-- {
		part = (Size(digits[i]-'0')*s + part) / 10
	}
	return part
}

// parseUnit returns the bytes of a unit. It compares bytes, because Unicode case folding maps the
// Kelvin sign to k.
func parseUnit(unit string) (Size, bool) {
	if unit == "" {
		return 1, true
	}
	power := strings.IndexByte("kmgt", unit[0]|0x20)
	if power < 0 {
		return 0, false
	}
	switch unit[1:] {
	case "", "b", "B", "i", "I", "ib", "iB", "Ib", "IB":
		return KiB << (10 * power), true
	}
	return 0, false
}

// cutNumber splits s after its leading decimal number. A point needs a digit on both
// sides. Signs, exponents and digits outside ASCII are not accepted.
func cutNumber(s string) (whole, fraction, rest string, ok bool) {
	whole, rest = cutDigits(s)
	if whole == "" {
		return "", "", s, false
	}
	if strings.HasPrefix(rest, ".") {
		fraction, rest = cutDigits(rest[1:])
		if fraction == "" {
			return "", "", s, false
		}
	}
	return whole, fraction, rest, true
}

func cutDigits(s string) (digits, rest string) {
	i := 0
	for i < len(s) && '0' <= s[i] && s[i] <= '9' {
		i++
	}
	return s[:i], s[i:]
}

var units = [...]struct {
	size         Size
	name, letter string
}{
	{TiB, "TiB", "t"},
	{GiB, "GiB", "g"},
	{MiB, "MiB", "m"},
	{KiB, "KiB", "k"},
	{1, "B", ""},
}

// maxShown bounds the number before a unit: 143771 MiB is legible, 1073741825 B is not.
const maxShown = 1_000_000

// String renders s for people: 10 GiB, 1.5 GiB, 10082 MiB. It is exact, or begins with
// a tilde and is rounded to two decimals: ~1.37 TiB.
func (s Size) String() string {
	for _, u := range units {
		whole, part := s/u.size, s%u.size*100
		if s >= u.size && whole < maxShown && part%u.size == 0 {
			return decimal(whole, part/u.size, 2) + " " + u.name
		}
	}
	return s.rounded()
}

// rounded renders s with two decimals, in the largest unit of which it is at least one
// after rounding: a byte less than 1 MiB is ~1.00 MiB.
func (s Size) rounded() string {
	for _, u := range units {
		whole, hundredths := s/u.size, (s%u.size*100+u.size/2)/u.size
		if hundredths == 100 {
			whole, hundredths = whole+1, 0
		}
		if whole > 0 {
			return fmt.Sprintf("~%d.%02d %s", uint64(whole), uint64(hundredths), u.name)
		}
	}
	return "0 B"
}

// Words renders s for people as a file has it if it is a whole number of MiB, and otherwise rounded: 10g, ~29.90 GiB.
func (s Size) Words() string {
	if s%MiB == 0 {
		return s.Exact()
	}
	return s.rounded()
}

// Exact renders s as a whole number of the largest unit that is exact, for [ParseSize]
// to read: 10g, 1536m, 1073741825.
func (s Size) Exact() string {
	for _, u := range units {
		if s >= u.size && s%u.size == 0 {
			return strconv.FormatUint(uint64(s/u.size), 10) + u.letter
		}
	}
	return "0"
}

// decimal renders a number whose fraction is in units of 10^-places, without trailing
// zeros.
func decimal(whole, fraction Size, places int) string {
	text := fmt.Sprintf("%d.%0*d", uint64(whole), places, uint64(fraction))
	return strings.TrimRight(strings.TrimRight(text, "0"), ".")
}
