package limit

import (
	"encoding/json"
	"errors"
	"testing"
)

func TestParseMemorySet(t *testing.T) {
	for in, exact := range map[string]string{
		"10g": "10g", "25%": "25%", "0=10g,1=20g": "0=10g,1=20g", "1=20g,0=10240m": "0=10g,1=20g", "15=none,50%": "50%,15=none", "0": "none",
	} {
		set, err := ParseMemorySet("--mem", in)
		if err != nil || set.String() != exact || !set.IsSet() {
			t.Errorf("ParseMemorySet(%q) = %v, %v; want %q", in, set, err, exact)
		}
	}
	if got := (Set[Memory]{}); got.IsSet() || got.String() != "unset" {
		t.Errorf("the empty set is %v, want unset", got)
	}
}

func TestParseSetRejects(t *testing.T) {
	const once = "one limit for each device, and one without a device for the others"
	for _, tt := range []struct{ in, text, use string }{
		{"", `--mem="": empty`, memoryUse},
		{"10gb!", `--mem="10gb!": not a size`, memoryUse},
		{"101%", `--mem="101%": not a percentage in range`, memoryUse},
		{"0=", `--mem="0=": empty`, memoryUse},
		{"10g,", `--mem="10g,": "": empty`, memoryUse},
		{"0=10g,1=20x", `--mem="0=10g,1=20x": "1=20x": not a size`, memoryUse},
		{"16=1g", `--mem="16=1g": not a device index`, deviceUse},
		{"-1=1g", `--mem="-1=1g": not a device index`, deviceUse},
		{"=1g", `--mem="=1g": not a device index`, deviceUse},
		{"0=1=1g", `--mem="0=1=1g": not a size`, memoryUse},
		{"1=1g,1=2g", `--mem="1=1g,1=2g": "1=2g": limit given twice`, once},
		{"1g,none", `--mem="1g,none": "none": limit given twice`, once},
	} {
		if _, err := ParseMemorySet("--mem", tt.in); err == nil || err.Error() != tt.text+" (use "+tt.use+")" {
			t.Errorf("ParseMemorySet(%q):\n got %v\nwant %s", tt.in, err, tt.text)
		}
	}
	if _, err := ParseComputeSet("--compute", "30,1=101"); !errors.Is(err, errPercent) {
		t.Errorf("ParseComputeSet of 101%%: %v, want %v", err, errPercent)
	}
}

func TestSetFor(t *testing.T) {
	set, err := ParseComputeSet("--compute", "30,1=50%,2=0")
	if err != nil {
		t.Fatal(err)
	}
	for device, want := range []int{30, 50, 0, 30} {
		if got := set.For(device).Percent(); got != want {
			t.Errorf("device %d has %d %%, want %d %%", device, got, want)
		}
	}
	for devices, want := range map[int]string{3: "", MaxDevices: "",
		2:              "2=none: no such device (the job sees 2, counted from 0)",
		MaxDevices + 1: "of 17 devices: no such device (at most 16 are supported)"} {
		if err := set.CheckDevices(devices); (err == nil) != (want == "") || err != nil && err.Error() != want {
			t.Errorf("with %d devices: %v, want %s", devices, err, want)
		}
	}
}

func TestLimits(t *testing.T) {
	const text = "memory=10g compute=unset compute_max=50%,1=none"
	l, err := ParseLimits(text)
	if err != nil || l.String() != text || !l.IsSet() || !l.HasDefault() || l.Names(0) || !l.Names(1) {
		t.Errorf("got %v, %v", l, err)
	}
	if _, err := l.On(3); !errors.Is(err, errTwoWays) {
		t.Errorf("limits that name a device, on device 3: %v", err)
	}
	l.ComputeMax.Device[1] = 0
	if on, err := l.On(3); err != nil || on.String() != "memory=3=10g compute=unset compute_max=3=50%" || on.HasDefault() {
		t.Errorf("on device 3: %v, %v", on, err)
	}
	other := Limits{Memory: Set[Memory]{Default: MemorySize(GiB)}, Compute: Set[Compute]{Default: ComputePercent(20)}}
	if got := l.Or(other).String(); got != "memory=10g compute=20% compute_max=50%" {
		t.Errorf("with others where nothing is set: %v", got)
	}
	got, err := json.Marshal(l)
	if err != nil || string(got) != `{"memory":"10g","compute":"unset","compute_max":"50%"}` {
		t.Errorf("JSON: %s, %v", got, err)
	}
	if back := other; json.Unmarshal(got, &back) != nil || back != l {
		t.Errorf("%s is read back as %v", got, back)
	}
	for _, bad := range []string{"memory=x", "compute=101", "10g", "--mem=10g"} {
		if l, err := ParseLimits(bad); err == nil || l.IsSet() {
			t.Errorf("%q is read as %v", bad, l)
		}
	}
}

func FuzzParseLimits(f *testing.F) {
	for _, s := range badValues {
		f.Add(s)
	}
	for _, s := range []string{"10g", "25%", "12.5%", "none", "0=10g,1=20g", "10g,1=20g", "1=1g,1=2g", "16=1g", "0=,", "30,1=50%"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		checkRoundTrip(t, s, ParseMemorySet)
		checkRoundTrip(t, s, ParseComputeSet)
		if l, err := ParseLimits(s); err == nil {
			if back, err := ParseLimits(l.String()); err != nil || back != l {
				t.Errorf("%q: %v reads back as %v, %v", s, l, back, err)
			}
		}
	})
}

func checkRoundTrip[L limit](t *testing.T, s string, parse func(source, value string) (Set[L], error)) {
	set, err := parse("--flag", s)
	if err != nil {
		if set.IsSet() || !errors.As(err, new(*InputError)) {
			t.Errorf("%q: got %v with %#v", s, set, err)
		}
		return
	}
	if back, err := parse("--flag", set.String()); err != nil || back != set || !set.IsSet() {
		t.Errorf("%q: %v reads back as %v, %v", s, set, back, err)
	}
}
