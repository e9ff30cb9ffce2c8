package limit

import (
	"errors"
	"math"
	"testing"
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
		if err != nil || !m.IsSet() || m.String() != tt.exact {
			t.Errorf("%q is read as %v, %v; want %s", tt.in, m, err, tt.exact)
		}
		if got, err := m.Of(total); err != nil || got != tt.of {
			t.Errorf("%q of %v = %d, %v; want %d", tt.in, total, got, err, tt.of)
		}
	}
	if got, err := (Memory{share: onePercent}).Of(0); !errors.Is(err, ErrNoMemory) {
		t.Errorf("1%% of a device of unknown size = %d, %v; want %v", got, err, ErrNoMemory)
	}
}

func TestZeroLimits(t *testing.T) {
	var memory Memory
	if size, err := memory.Of(GiB); memory.IsSet() || size != 0 || err != nil || memory.String() != "unset" {
		t.Errorf("the zero Memory is %v and allows %v, %v; want unset and no limit", memory, size, err)
	}
	var compute Compute
	if compute.IsSet() || compute.Percent() != 0 || compute.String() != "unset" {
		t.Errorf("the zero Compute is %v; want unset and no limit", compute)
	}
	if m, c := MemorySize(0), ComputePercent(0); m.String() != "none" || c.String() != "none" || !c.IsSet() || c.Percent() != 0 {
		t.Errorf("limits of 0 are %v and %v, want none", m, c)
	}
	if c := ComputePercent(1000); c.Percent() != 100 {
		t.Errorf("1000 %% is %v, want 100%%", c)
	}
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
		if got := tt.percent.Of(tt.s); got != tt.of {
			t.Errorf("%v of %v = %d, want %d", tt.percent, tt.s, got, tt.of)
		}
	}
}
