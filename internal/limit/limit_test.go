package limit

import (
	"errors"
	"math"
	"testing"

	"ration/check/expect"
)

// What the text is read as is in testdata/grammar.txt.
func TestMemory(t *testing.T) {
	const total = 80 * GiB
	for _, tt := range []struct {
		in, exact string
		of        Size
	}{
		{"10g", "10g", 10 * GiB},
		{"100g", "100g", 100 * GiB}, // more than the device has is not reduced
		{"25%", "25%", 20 * GiB},
		{"12.50%", "12.5%", 10 * GiB},
		{"33.3333%", "33.3333%", 28633086673},
		{"1%", "1%", 858993459},
		{"100%", "100%", total},
		{"0m", "none", 0},
		{"Unlimited", "none", 0},
	} {
		m, err := parseMemory(tt.in)
		expect.True(t, err == nil && m.IsSet() && m.String() == tt.exact, tt.in, "is read as", m, err, tt.exact)
		got, err := m.Of(total)
		expect.True(t, err == nil && got == tt.of, tt.in, "of", total, got, err, tt.of)
	}
	got, err := (Memory{share: onePercent}).Of(0)
	expect.True(t, errors.Is(err, ErrNoMemory), "1% of a device of unknown size", got, err, ErrNoMemory)
}

func TestZeroLimits(t *testing.T) {
	var memory Memory
	size, err := memory.Of(GiB)
	expect.True(t, !memory.IsSet() && size == 0 && err == nil && memory.String() == "unset",
		"the zero Memory is", memory, "and allows", size, err, "want unset and no limit")
	var compute Compute
	expect.True(t, !compute.IsSet() && compute.Percent() == 0 && compute.String() == "unset",
		"the zero Compute is", compute, "want unset and no limit")
	m, c := MemorySize(0), ComputePercent(0)
	expect.True(t, m.String() == "none" && c.String() == "none" && c.IsSet() && c.Percent() == 0, "limits of 0 are", m, c, "want none")
	c = ComputePercent(1000)
	expect.Equal(t, c.Percent(), 100, "1000 % is", c, "want 100%")
}

func TestPercent(t *testing.T) {
	for _, tt := range []struct {
		percent Percent
		s, of   Size
	}{
		{0, 10 * GiB, 0},
		{10 * onePercent, 10 * GiB, GiB},
		{onePercent / 2, 1000, 5},
		{onePercent, 99, 0},
		{whole, 0, 0},
		{whole, math.MaxUint64, math.MaxUint64},
		{onePercent, math.MaxUint64, 184467440737095516},
	} {
		expect.Equal(t, tt.percent.Of(tt.s), tt.of, tt.percent, "of", tt.s)
	}
}
