package ration_test

import (
	"errors"
	"math"
	"testing"

	"ration/internal/ration"
)

func TestParseMemory(t *testing.T) {
	const total = 80 * ration.GiB
	for _, tt := range []struct {
		in, exact string
		of        ration.Size
	}{
		{"10g", "10g", 10 * ration.GiB},
		{"100g", "100g", 100 * ration.GiB}, // more than there is stands as asked
		{"25%", "25%", 20 * ration.GiB},
		{"12.5%", "12.5%", 10 * ration.GiB},
		{"12.50%", "12.5%", 10 * ration.GiB},
		{"33.3333%", "33.3333%", 28633086673},
		{"1%", "1%", 858993459},
		{"100%", "100%", total},
		{"0", "none", 0},
		{"0m", "none", 0},
		{"none", "none", 0},
		{"Unlimited", "none", 0},
	} {
		limit, err := ration.ParseMemory(tt.in)
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

func TestParseMemoryRejects(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want error
	}{
		{"", ration.ErrEmpty},
		{"%", ration.ErrPercent},
		{"0%", ration.ErrPercent},
		{"0.5%", ration.ErrPercent},
		{"100.0001%", ration.ErrPercent},
		{"101%", ration.ErrPercent},
		{"99999999999999999999%", ration.ErrPercent},
		{"12.34567%", ration.ErrPercent},
		{"-25%", ration.ErrPercent},
		{"25%%", ration.ErrPercent},
		{"25 %", ration.ErrPercent},
		{"10gb!", ration.ErrSize},
		{"unset", ration.ErrSize},
		{"18446744073709551616", ration.ErrOverflow},
	} {
		got, err := ration.ParseMemory(tt.in)
		if !errors.Is(err, tt.want) {
			t.Errorf("ParseMemory(%q) = %v, %v; want error %v", tt.in, got, err, tt.want)
		}
	}
}

func TestShareOfUnknownDevice(t *testing.T) {
	limit, err := ration.ParseMemory("25%")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := limit.Of(0); !errors.Is(err, ration.ErrNoMemory) {
		t.Errorf("25%% of nothing = %d, %v; it must not read as no limit", got, err)
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
		limit, err := ration.ParseCompute(tt.in)
		if err != nil || limit.Percent() != tt.want || !limit.IsSet() {
			t.Errorf("ParseCompute(%q) = %v, %v; want %d", tt.in, limit, err, tt.want)
		}
	}
	for _, in := range []string{"101", "12.5", "-1", "30%%", "30 %", "1e1", "x", "%"} {
		if got, err := ration.ParseCompute(in); !errors.Is(err, ration.ErrPercent) {
			t.Errorf("ParseCompute(%q) = %v, %v; want error %v", in, got, err, ration.ErrPercent)
		}
	}
	if _, err := ration.ParseCompute(""); !errors.Is(err, ration.ErrEmpty) {
		t.Errorf("ParseCompute of nothing: %v, want %v", err, ration.ErrEmpty)
	}
}

func TestZeroLimits(t *testing.T) {
	var memory ration.Memory
	if size, err := memory.Of(ration.GiB); memory.IsSet() || size != 0 || err != nil || memory.String() != "unset" {
		t.Errorf("the zero Memory is %v and allows %v, %v; want unset and no limit", memory, size, err)
	}
	var compute ration.Compute
	if compute.IsSet() || compute.Percent() != 0 || compute.String() != "unset" {
		t.Errorf("the zero Compute is %v; want unset and no limit", compute)
	}
	if got := ration.MemorySize(0); got != ration.NoMemoryLimit {
		t.Errorf("MemorySize(0) = %v, want %v", got, ration.NoMemoryLimit)
	}
}

func TestParseTolerance(t *testing.T) {
	for in, want := range map[string]ration.Percent{
		"0": 0, "10": 10 * ration.OnePercent, "2.5%": 5 * ration.OnePercent / 2, "100%": ration.Whole,
	} {
		if got, err := ration.ParseTolerance("--tolerance", in); err != nil || got != want {
			t.Errorf("ParseTolerance(%q) = %v, %v; want %v", in, got, err, want)
		}
	}
	const want = `--tolerance="101": not a percentage in range (use a percentage from 0 to 100, like 10 or 2.5%)`
	if _, err := ration.ParseTolerance("--tolerance", "101"); err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestPercent(t *testing.T) {
	for _, tt := range []struct {
		percent        ration.Percent
		limit, of, max ration.Size
	}{
		{0, 10 * ration.GiB, 0, 10 * ration.GiB},
		{10 * ration.OnePercent, 10 * ration.GiB, ration.GiB, 11 * ration.GiB},
		{ration.OnePercent / 2, 1000, 5, 1005},
		{ration.OnePercent, 99, 0, 99},
		{ration.Whole, 0, 0, 0},
		{ration.Whole, math.MaxUint64, math.MaxUint64, math.MaxUint64},
		{ration.OnePercent, math.MaxUint64, 184467440737095516, math.MaxUint64},
	} {
		if got := tt.percent.Of(tt.limit); got != tt.of {
			t.Errorf("%v of %v = %d, want %d", tt.percent, tt.limit, got, tt.of)
		}
		if got := tt.percent.Over(tt.limit); got != tt.max {
			t.Errorf("%v over %v = %d, want %d", tt.percent, tt.limit, got, tt.max)
		}
	}
}
