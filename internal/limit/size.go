// Package limit is the domain of this project: sizes, limits, the settings a
// job is given and the name it goes by. It reads nothing, maps nothing and
// knows no GPU; everything in it is a function of its arguments, so that the
// command line, the tests and the tools all mean the same thing by "10g".
package limit

import (
	"math/bits"
	"strconv"
	"strings"
)

// Size is a number of bytes.
type Size uint64

// Multiples are binary throughout, as they are in HAMi-core: a limit of "10g"
// is the same number of bytes whichever of the two reads it.
const (
	KiB Size = 1 << (10 * (iota + 1))
	MiB
	GiB
	TiB
)

const sizeUse = "bytes or a number with k, m, g or t, like 10g, 1024m or 1.5g"

// ParseSize reads a size: plain bytes, or a number followed by k, m, g or t,
// in either case and optionally spelled out (10g, 10G, 10gb, 10GiB). A
// fraction is taken exactly and what is left below one byte is dropped, so a
// size is never more than was asked for.
//
// It returns an error matching [ErrSize] if s is not a size, and [ErrOverflow]
// if it is one that 64 bits cannot hold.
func ParseSize(s string) (Size, error) {
	size, err := parseSize(s)
	if err != nil {
		return 0, &InputError{Value: s, Err: err, Use: sizeUse}
	}
	return size, nil
}

func parseSize(s string) (Size, error) {
	if s == "" {
		return 0, ErrEmpty
	}
	whole, fraction, unit, ok := cutNumber(s)
	if !ok {
		return 0, ErrSize
	}
	scale, ok := parseUnit(unit)
	if !ok || fraction != "" && scale == 1 {
		return 0, ErrSize
	}
	n, err := strconv.ParseUint(whole, 10, 64)
	if err != nil {
		return 0, ErrOverflow
	}
	over, bytes := bits.Mul64(n, uint64(scale))
	if over != 0 {
		return 0, ErrOverflow
	}
	// A multiple of scale leaves room for one scale less a byte, and the
	// fraction is never more than that.
	size := Size(bytes) + scale.fraction(fraction)
	if size == 0 && strings.Trim(fraction, "0") != "" {
		// Zero stands for "no limit": a tiny limit must not become none.
		return 0, ErrSize
	}
	return size, nil
}

// fraction returns 0.digits of s, rounded down. Working from the last digit to
// the first needs no more than s*10 however many digits there are, and loses
// nothing: a remainder dropped on the way could never have made up a byte.
func (s Size) fraction(digits string) Size {
	var part Size
	for i := len(digits) - 1; i >= 0; i-- {
		part = (Size(digits[i]-'0')*s + part) / 10
	}
	return part
}

// parseUnit compares bytes rather than folding case: Unicode folds the Kelvin
// sign to k.
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

// cutNumber splits s after its leading decimal number. A point needs a digit
// on both sides; signs, exponents and digits outside ASCII are not numbers.
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

// legible bounds the number shown in front of a unit: 143771 MiB still reads
// as a size, 1073741825 B does not.
const legible = 1_000_000

// String renders s for people: 10 GiB, 1.5 GiB, 10082 MiB. The value is exact
// unless it starts with a tilde: ~1.37 TiB is rounded to the two decimals shown.
func (s Size) String() string {
	for _, u := range units {
		whole, part := s/u.size, s%u.size*100
		if s >= u.size && whole < legible && part%u.size == 0 {
			return decimal(whole, part/u.size, 2) + " " + u.name
		}
	}
	return s.rounded()
}

// rounded renders s to two decimals of the largest unit in which it comes to
// at least one, after rounding: a byte short of 1 MiB is ~1.00 MiB.
func (s Size) rounded() string {
	for _, u := range units {
		whole, hundredths := s/u.size, (s%u.size*100+u.size/2)/u.size
		if hundredths == 100 {
			whole, hundredths = whole+1, 0
		}
		if whole > 0 {
			return "~" + strconv.FormatUint(uint64(whole), 10) + "." + pad(hundredths, 2) + " " + u.name
		}
	}
	return "0 B" // nothing else comes to less than one of everything
}

// Exact renders s to the byte, in a whole number that [ParseSize] reads back
// to the same size: 10g, 1536m, 1073741825.
func (s Size) Exact() string {
	for _, u := range units {
		if s >= u.size && s%u.size == 0 {
			return strconv.FormatUint(uint64(s/u.size), 10) + u.letter
		}
	}
	return "0"
}

// decimal renders whole and a fraction counted in 10^-places, without the
// zeros at its end.
func decimal(whole, fraction Size, places int) string {
	digits := strings.TrimRight(pad(fraction, places), "0")
	if digits != "" {
		digits = "." + digits
	}
	return strconv.FormatUint(uint64(whole), 10) + digits
}

func pad(n Size, width int) string {
	digits := strconv.FormatUint(uint64(n), 10)
	return strings.Repeat("0", max(0, width-len(digits))) + digits
}
