package limit_test

import (
	"errors"
	"math"
	"testing"

	"ration/internal/limit"
)

func TestParseMemory(t *testing.T) {
	const total = 80 * limit.GiB
	for _, tt := range []struct {
		in, exact string
		of        limit.Size
	}{
		{"10g", "10g", 10 * limit.GiB},
		{"100g", "100g", 100 * limit.GiB}, // more than the device has is not reduced
		{"25%", "25%", 20 * limit.GiB},
		{"12.5%", "12.5%", 10 * limit.GiB},
		{"12.50%", "12.5%", 10 * limit.GiB},
		{"33.3333%", "33.3333%", 28633086673},
		{"1%", "1%", 858993459},
		{"100%", "100%", total},
		{"0", "none", 0},
		{"0m", "none", 0},
		{"none", "none", 0},
		{"Unlimited", "none", 0},
	} {
		limit, err := limit.ParseMemory(tt.in)
		if err != nil {
			t.Errorf("ParseMemory(%q): %v", tt.in, err)
			continue
		}
		if !limit.IsSet() {
			t.Errorf("ParseMemory(%q) is not set", tt.in)
		}
		if got := limit.String(); got != tt.exact {
			t.Errorf("ParseMemory(%q) renders as %q, want %q", tt.in, got, tt.exact)
		}
		if got, err := limit.Of(total); err != nil || got != tt.of {
			t.Errorf("%q of %v = %d, %v; want %d", tt.in, total, got, err, tt.of)
		}
	}
}

func TestShareOfUnknownDevice(t *testing.T) {
	share, err := limit.ParseMemory("25%")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := share.Of(0); !errors.Is(err, limit.ErrNoMemory) {
		t.Errorf("25%% of a device of unknown size = %d, %v; want %v", got, err, limit.ErrNoMemory)
	}
}

func TestParseCompute(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want int
	}{
		{"1", 1}, {"30", 30}, {"30%", 30}, {"100", 100}, {"100.0%", 100},
		{"0", 0}, {"0%", 0}, {"none", 0}, {"unlimited", 0},
	} {
		limit, err := limit.ParseCompute(tt.in)
		if err != nil || limit.Percent() != tt.want || !limit.IsSet() {
			t.Errorf("ParseCompute(%q) = %v, %v; want %d", tt.in, limit, err, tt.want)
		}
	}
	for _, in := range []string{"101", "12.5", "-1", "30%%", "30 %", "1e1", "x", "%"} {
		if got, err := limit.ParseCompute(in); !errors.Is(err, limit.ErrPercent) {
			t.Errorf("ParseCompute(%q) = %v, %v; want error %v", in, got, err, limit.ErrPercent)
		}
	}
	if _, err := limit.ParseCompute(""); !errors.Is(err, limit.ErrEmpty) {
		t.Errorf("ParseCompute(\"\"): %v, want %v", err, limit.ErrEmpty)
	}
}

func TestZeroLimits(t *testing.T) {
	var memory limit.Memory
	if size, err := memory.Of(limit.GiB); memory.IsSet() || size != 0 || err != nil || memory.String() != "unset" {
		t.Errorf("the zero Memory is %v and allows %v, %v; want unset and no limit", memory, size, err)
	}
	var compute limit.Compute
	if compute.IsSet() || compute.Percent() != 0 || compute.String() != "unset" {
		t.Errorf("the zero Compute is %v; want unset and no limit", compute)
	}
	if got := limit.MemorySize(0); got != limit.NoMemoryLimit {
		t.Errorf("MemorySize(0) = %v, want %v", got, limit.NoMemoryLimit)
	}
}

func TestPercent(t *testing.T) {
	for _, tt := range []struct {
		percent   limit.Percent
		limit, of limit.Size
	}{
		{0, 10 * limit.GiB, 0},
		{10 * limit.OnePercent, 10 * limit.GiB, limit.GiB},
		{limit.OnePercent / 2, 1000, 5},
		{limit.OnePercent, 99, 0},
		{limit.Whole, 0, 0},
		{limit.Whole, math.MaxUint64, math.MaxUint64},
		{limit.OnePercent, math.MaxUint64, 184467440737095516},
	} {
		if got := tt.percent.Of(tt.limit); got != tt.of {
			t.Errorf("%v of %v = %d, want %d", tt.percent, tt.limit, got, tt.of)
		}
	}
}
