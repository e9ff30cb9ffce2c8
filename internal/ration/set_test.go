package ration_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"ration/internal/ration"
)

func TestParseMemorySet(t *testing.T) {
	for _, tt := range []struct {
		in, exact string
	}{
		{"10g", "10g"},
		{"25%", "25%"},
		{"0=10g,1=20g", "0=10g,1=20g"},
		{"1=20g,0=10240m", "0=10g,1=20g"},
		{"15=none,50%", "50%,15=none"},
		{"0", "none"},
	} {
		set, err := ration.ParseMemorySet("--mem", tt.in)
		if err != nil || set.String() != tt.exact || !set.IsSet() {
			t.Errorf("ParseMemorySet(%q) = %v, %v; want %q", tt.in, set, err, tt.exact)
		}
	}
	if got := (ration.Set[ration.Memory]{}); got.IsSet() || got.String() != "unset" {
		t.Errorf("the empty set is %v, want unset", got)
	}
}

func TestParseSetRejects(t *testing.T) {
	const (
		size   = "bytes or a number with k, m, g or t, like 10g, 1024m or 1.5g; or a percentage from 1 to 100, like 25%"
		device = "a device from 0 to 15"
		once   = "one limit for each device, and one without a device for the others"
	)
	for _, tt := range []struct {
		in, text, use string
		want          error
	}{
		{"", `--mem="": empty`, size, ration.ErrEmpty},
		{"10gb!", `--mem="10gb!": not a size`, size, ration.ErrSize},
		{"101%", `--mem="101%": not a percentage in range`, size, ration.ErrPercent},
		{"0=", `--mem="0=": empty`, size, ration.ErrEmpty},
		{"10g,", `--mem="10g,": "": empty`, size, ration.ErrEmpty},
		{"0=10g,1=20x", `--mem="0=10g,1=20x": "1=20x": not a size`, size, ration.ErrSize},
		{"16=1g", `--mem="16=1g": not a device index`, device, ration.ErrDevice},
		{"-1=1g", `--mem="-1=1g": not a device index`, device, ration.ErrDevice},
		{"01=1g", `--mem="01=1g": not a device index`, device, ration.ErrDevice},
		{"=1g", `--mem="=1g": not a device index`, device, ration.ErrDevice},
		{"0=1=1g", `--mem="0=1=1g": not a size`, size, ration.ErrSize},
		{"1=1g,1=2g", `--mem="1=1g,1=2g": "1=2g": limit given twice`, once, ration.ErrDuplicate},
		{"1g,none", `--mem="1g,none": "none": limit given twice`, once, ration.ErrDuplicate},
	} {
		_, err := ration.ParseMemorySet("--mem", tt.in)
		if text := tt.text + " (use " + tt.use + ")"; !errors.Is(err, tt.want) || err.Error() != text {
			t.Errorf("ParseMemorySet(%q):\n got %v\nwant %s", tt.in, err, text)
		}
	}
	if _, err := ration.ParseComputeSet("--sm", "30,1=101"); !errors.Is(err, ration.ErrPercent) {
		t.Errorf("ParseComputeSet of 101%%: %v, want %v", err, ration.ErrPercent)
	}
}

func TestResolveMemory(t *testing.T) {
	totals := []ration.Size{80 * ration.GiB, 40 * ration.GiB}
	for _, tt := range []struct {
		in   string
		want []ration.Size
		err  error
	}{
		{"10g", []ration.Size{10 * ration.GiB, 10 * ration.GiB}, nil},
		{"25%", []ration.Size{20 * ration.GiB, 10 * ration.GiB}, nil},
		{"1=20g", []ration.Size{0, 20 * ration.GiB}, nil},
		{"10g,1=none", []ration.Size{10 * ration.GiB, 0}, nil},
		{"2=1g", nil, ration.ErrNoDevice},
	} {
		set, err := ration.ParseMemorySet("--mem", tt.in)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ration.ResolveMemory(set, totals)
		if !slices.Equal(got, tt.want) || !errors.Is(err, tt.err) {
			t.Errorf("resolving %q: %v, %v; want %v, %v", tt.in, got, err, tt.want, tt.err)
		}
	}
	share, err := ration.ParseMemorySet("--mem", "25%")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ration.ResolveMemory(share, []ration.Size{0}); !errors.Is(err, ration.ErrNoMemory) {
		t.Errorf("a share of a device of unknown size: %v, %v; want %v", got, err, ration.ErrNoMemory)
	}
	if _, err := ration.ResolveMemory(share, make([]ration.Size, ration.MaxDevices+1)); !errors.Is(err, ration.ErrNoDevice) {
		t.Errorf("one device too many: %v, want %v", err, ration.ErrNoDevice)
	}
}

func TestResolveCompute(t *testing.T) {
	set, err := ration.ParseComputeSet("--sm", "30,1=50%,2=0")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ration.ResolveCompute(set, 4); err != nil || !slices.Equal(got, []int{30, 50, 0, 30}) {
		t.Errorf("got %v, %v; want [30 50 0 30]", got, err)
	}
	for _, devices := range []int{-1, 2, ration.MaxDevices + 1} {
		if got, err := ration.ResolveCompute(set, devices); !errors.Is(err, ration.ErrNoDevice) {
			t.Errorf("with %d devices: %v, %v; want %v", devices, got, err, ration.ErrNoDevice)
		}
	}
}

func ExampleResolveMemory() {
	limits, err := ration.ParseMemorySet("--mem", "25%,1=10g")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(ration.ResolveMemory(limits, []ration.Size{80 * ration.GiB, 80 * ration.GiB}))
	fmt.Println(ration.ResolveMemory(limits, []ration.Size{80 * ration.GiB}))
	// Output:
	// [20 GiB 10 GiB] <nil>
	// [] memory limit 1=10g: no such device (the job sees 1, counted from 0)
}

func FuzzParseLimits(f *testing.F) {
	for _, s := range badValues {
		f.Add(s)
	}
	for _, s := range []string{"10g", "25%", "12.5%", "none", "0=10g,1=20g", "10g,1=20g", "1=1g,1=2g", "16=1g", "0=,", "30,1=50%"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if set, err := ration.ParseMemorySet("--mem", s); err == nil {
			if back, err := ration.ParseMemorySet("--mem", set.String()); err != nil || back != set || !set.IsSet() {
				t.Errorf("%q: %v reads back as %v, %v", s, set, back, err)
			}
		} else if set.IsSet() || !errors.As(err, new(*ration.InputError)) {
			t.Errorf("%q: got %v with %#v", s, set, err)
		}
		if set, err := ration.ParseComputeSet("--sm", s); err == nil {
			if back, err := ration.ParseComputeSet("--sm", set.String()); err != nil || back != set || !set.IsSet() {
				t.Errorf("%q: %v reads back as %v, %v", s, set, back, err)
			}
		} else if set.IsSet() || !errors.As(err, new(*ration.InputError)) {
			t.Errorf("%q: got %v with %#v", s, set, err)
		}
	})
}
