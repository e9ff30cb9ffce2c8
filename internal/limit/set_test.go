package limit_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"ration/internal/limit"
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
		set, err := limit.ParseMemorySet("--mem", tt.in)
		if err != nil || set.String() != tt.exact || !set.IsSet() {
			t.Errorf("ParseMemorySet(%q) = %v, %v; want %q", tt.in, set, err, tt.exact)
		}
	}
	if got := (limit.Set[limit.Memory]{}); got.IsSet() || got.String() != "unset" {
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
		{"", `--mem="": empty`, size, limit.ErrEmpty},
		{"10gb!", `--mem="10gb!": not a size`, size, limit.ErrSize},
		{"101%", `--mem="101%": not a percentage in range`, size, limit.ErrPercent},
		{"0=", `--mem="0=": empty`, size, limit.ErrEmpty},
		{"10g,", `--mem="10g,": "": empty`, size, limit.ErrEmpty},
		{"0=10g,1=20x", `--mem="0=10g,1=20x": "1=20x": not a size`, size, limit.ErrSize},
		{"16=1g", `--mem="16=1g": not a device index`, device, limit.ErrDevice},
		{"-1=1g", `--mem="-1=1g": not a device index`, device, limit.ErrDevice},
		{"01=1g", `--mem="01=1g": not a device index`, device, limit.ErrDevice},
		{"=1g", `--mem="=1g": not a device index`, device, limit.ErrDevice},
		{"0=1=1g", `--mem="0=1=1g": not a size`, size, limit.ErrSize},
		{"1=1g,1=2g", `--mem="1=1g,1=2g": "1=2g": limit given twice`, once, limit.ErrDuplicate},
		{"1g,none", `--mem="1g,none": "none": limit given twice`, once, limit.ErrDuplicate},
	} {
		_, err := limit.ParseMemorySet("--mem", tt.in)
		if text := tt.text + " (use " + tt.use + ")"; !errors.Is(err, tt.want) || err.Error() != text {
			t.Errorf("ParseMemorySet(%q):\n got %v\nwant %s", tt.in, err, text)
		}
	}
	if _, err := limit.ParseComputeSet("--sm", "30,1=101"); !errors.Is(err, limit.ErrPercent) {
		t.Errorf("ParseComputeSet of 101%%: %v, want %v", err, limit.ErrPercent)
	}
}

func TestResolveMemory(t *testing.T) {
	totals := []limit.Size{80 * limit.GiB, 40 * limit.GiB}
	for _, tt := range []struct {
		in   string
		want []limit.Size
		err  error
	}{
		{"10g", []limit.Size{10 * limit.GiB, 10 * limit.GiB}, nil},
		{"25%", []limit.Size{20 * limit.GiB, 10 * limit.GiB}, nil},
		{"1=20g", []limit.Size{0, 20 * limit.GiB}, nil},
		{"10g,1=none", []limit.Size{10 * limit.GiB, 0}, nil},
		{"2=1g", nil, limit.ErrNoDevice},
	} {
		set, err := limit.ParseMemorySet("--mem", tt.in)
		if err != nil {
			t.Fatal(err)
		}
		got, err := limit.ResolveMemory(set, totals)
		if !slices.Equal(got, tt.want) || !errors.Is(err, tt.err) {
			t.Errorf("resolving %q: %v, %v; want %v, %v", tt.in, got, err, tt.want, tt.err)
		}
	}
	share, err := limit.ParseMemorySet("--mem", "25%")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := limit.ResolveMemory(share, []limit.Size{0}); !errors.Is(err, limit.ErrNoMemory) {
		t.Errorf("a share of a device of unknown size: %v, %v; want %v", got, err, limit.ErrNoMemory)
	}
	if _, err := limit.ResolveMemory(share, make([]limit.Size, limit.MaxDevices+1)); !errors.Is(err, limit.ErrNoDevice) {
		t.Errorf("one device too many: %v, want %v", err, limit.ErrNoDevice)
	}
}

func TestResolveCompute(t *testing.T) {
	set, err := limit.ParseComputeSet("--sm", "30,1=50%,2=0")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := limit.ResolveCompute(set, 4); err != nil || !slices.Equal(got, []int{30, 50, 0, 30}) {
		t.Errorf("got %v, %v; want [30 50 0 30]", got, err)
	}
	for _, devices := range []int{-1, 2, limit.MaxDevices + 1} {
		if got, err := limit.ResolveCompute(set, devices); !errors.Is(err, limit.ErrNoDevice) {
			t.Errorf("with %d devices: %v, %v; want %v", devices, got, err, limit.ErrNoDevice)
		}
	}
}

func ExampleResolveMemory() {
	limits, err := limit.ParseMemorySet("--mem", "25%,1=10g")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(limit.ResolveMemory(limits, []limit.Size{80 * limit.GiB, 80 * limit.GiB}))
	fmt.Println(limit.ResolveMemory(limits, []limit.Size{80 * limit.GiB}))
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
		if set, err := limit.ParseMemorySet("--mem", s); err == nil {
			if back, err := limit.ParseMemorySet("--mem", set.String()); err != nil || back != set || !set.IsSet() {
				t.Errorf("%q: %v reads back as %v, %v", s, set, back, err)
			}
		} else if set.IsSet() || !errors.As(err, new(*limit.InputError)) {
			t.Errorf("%q: got %v with %#v", s, set, err)
		}
		if set, err := limit.ParseComputeSet("--sm", s); err == nil {
			if back, err := limit.ParseComputeSet("--sm", set.String()); err != nil || back != set || !set.IsSet() {
				t.Errorf("%q: %v reads back as %v, %v", s, set, back, err)
			}
		} else if set.IsSet() || !errors.As(err, new(*limit.InputError)) {
			t.Errorf("%q: got %v with %#v", s, set, err)
		}
	})
}
