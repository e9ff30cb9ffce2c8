package limit

import (
	"math/bits"
	"strconv"
	"strings"
)

// Percent is a percentage from 0 to 100, counted in ten-thousandths of a
// percent so that 12.5% and 33.3333% are exact.
type Percent uint32

const (
	percentPlaces = 4

	// OnePercent is 1%.
	OnePercent Percent = 10_000

	// Whole is 100%.
	Whole = 100 * OnePercent
)

// parsePercent reads a percentage with up to four decimals, with or without a percent
// sign.
func parsePercent(s string) (Percent, error) {
	if s == "" {
		return 0, ErrEmpty
	}
	whole, fraction, sign, ok := cutNumber(s)
	if !ok || sign != "" && sign != "%" || len(fraction) > percentPlaces {
		return 0, ErrPercent
	}
	fraction += strings.Repeat("0", percentPlaces-len(fraction))
	n, err := strconv.ParseUint(whole+fraction, 10, 32)
	if err != nil || Percent(n) > Whole {
		return 0, ErrPercent
	}
	return Percent(n), nil
}

// String renders p with a percent sign: 25%, 12.5%.
func (p Percent) String() string {
	return decimal(Size(p/OnePercent), Size(p%OnePercent), percentPlaces) + "%"
}

// Of returns p of s, rounded down.
func (p Percent) Of(s Size) Size {
	hi, lo := bits.Mul64(uint64(s), uint64(min(p, Whole)))
	share, _ := bits.Div64(hi, lo, uint64(Whole))
	return Size(share)
}
