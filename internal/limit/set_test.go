package limit

import (
	"encoding/json"
	"errors"
	"testing"

	"ration/check/expect"
)

func TestParseMemorySet(t *testing.T) {
	for in, exact := range map[string]string{
		"10g": "10g", "25%": "25%", "0=10g,1=20g": "0=10g,1=20g", "1=20g,0=10240m": "0=10g,1=20g", "15=none,50%": "50%,15=none", "0=10g,others=none": "none,0=10g", "others=5g": "5g",
	} {
		set, err := ParseMemorySet("--mem", in)
		expect.True(t, err == nil && set.String() == exact && set.IsSet(), "ParseMemorySet(", in, ")", set, err, exact)
	}
	got := (Set[Memory]{})
	expect.True(t, !got.IsSet() && got.String() == "unset", "the empty set is", got, "want unset")
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
		{"0", `--mem="0": not a limit; none means no limit`, memoryUse},
		{"1g,1=0", `--mem="1g,1=0": "1=0": not a limit; none means no limit`, memoryUse},
		{"0g,others=1g", `--mem="0g,others=1g": "0g": not a limit; none means no limit`, memoryUse},
		{"1g,others=2g", `--mem="1g,others=2g": "others=2g": limit given twice`, once},
		{"16=1g", `--mem="16=1g": not a device index`, deviceUse},
		{"-1=1g", `--mem="-1=1g": not a device index`, deviceUse},
		{"=1g", `--mem="=1g": not a device index`, deviceUse},
		{"0=1=1g", `--mem="0=1=1g": not a size`, memoryUse},
		{"1=1g,1=2g", `--mem="1=1g,1=2g": "1=2g": limit given twice`, once},
		{"0=10g,1", `--mem="0=10g,1": "1": a device without a size`, "1=10g for device 1"},
		{"1,0=10g", `--mem="1,0=10g": "1": a device without a size`, "1=10g for device 1"},
		{"0=10g,0x1", `--mem="0=10g,0x1": "1": a device without a size`, "1=10g for device 1"},
		{"0,15", `--mem="0,15": "0": a device without a size`, "0=10g for device 0"},
		{"1g,none", `--mem="1g,none": "none": limit given twice`, once},
	} {
		_, err := ParseMemorySet("--mem", tt.in)
		expect.True(t, err != nil && err.Error() == tt.text+" (use "+tt.use+")", "ParseMemorySet(", tt.in, "):\n got", err, tt.text)
	}
	_, err := ParseComputeSet("--compute", "30,1=101")
	expect.True(t, errors.Is(err, errPercent), "ParseComputeSet of 101%", err, errPercent)
}

func TestSetFor(t *testing.T) {
	set, err := ParseComputeSet("--compute", "30,1=50%,2=0")
	expect.OK(t, err)
	for device, want := range []int{30, 50, 0, 30} {
		expect.Equal(t, set.For(device).Percent(), want, "device", device, "in percent")
	}
	for devices, want := range map[int]string{3: "", MaxDevices: "",
		2:              "2=none: no such device (nvidia-smi lists 2 GPUs, the first is 0)",
		MaxDevices + 1: "of 17 devices: no such device (at most 16 are supported)"} {
		err := set.CheckDevices(devices)
		expect.True(t, (err == nil) == (want == "") && (err == nil || err.Error() == want), "with", devices, "devices", err, want)
	}
}

func TestLimits(t *testing.T) {
	const text = "memory=10g compute=unset compute_max=50%,1=none"
	l, err := ParseLimits(text)
	expect.True(t, err == nil && l.String() == text && l.IsSet() && l.HasDefault() && !l.Names(0) && l.Names(1), l, err)
	_, err = l.On(3)
	expect.True(t, errors.Is(err, errTwoWays), "limits that name a device, on device 3", err)
	l.ComputeMax.Device[1] = 0
	on, err := l.On(3)
	expect.True(t, err == nil && on.String() == "memory=3=10g compute=unset compute_max=3=50%" && !on.HasDefault(), "on device 3", on, err)
	other := Limits{Memory: Set[Memory]{Default: MemorySize(GiB)}, Compute: Set[Compute]{Default: ComputePercent(20)}}
	expect.Equal(t, l.Or(other).String(), "memory=10g compute=20% compute_max=50%", "with others where nothing is set")
	got, err := json.Marshal(l)
	expect.True(t, err == nil && string(got) == `{"memory":"10g","compute":"unset","compute_max":"50%"}`, "JSON", got, err)
	back := other
	expect.True(t, json.Unmarshal(got, &back) == nil && back == l, got, "is read back as", back)
	one, err := ParseLimits("memory=10g devices=1")
	expect.True(t, err == nil && one.Devices == 1 && one.String() == "memory=10g compute=unset compute_max=unset devices=1" && other.Or(one).Devices == 1, one, err)
	for _, bad := range []string{"devices=0", "devices=01", "devices=17", "memory=x", "compute=101", "10g", "--mem=10g"} {
		l, err := ParseLimits(bad)
		expect.True(t, err != nil && !l.IsSet(), bad, "is read as", l)
	}
}

func FuzzParseLimits(f *testing.F) {
	for _, s := range badValues {
		f.Add(s)
	}
	for _, s := range []string{"10g", "25%", "12.5%", "none", "0=10g,1=20g", "10g,1=20g", "1=1g,1=2g", "16=1g", "0=,", "30,1=50%", "0x1,0=10g", "others=1,0=10g"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		checkRoundTrip(t, s, ParseMemorySet)
		checkRoundTrip(t, s, ParseComputeSet)
		if l, err := ParseLimits(s); err == nil {
			back, err := ParseLimits(l.String())
			expect.True(t, err == nil && back == l, s, l, "reads back as", back, err)
		}
	})
}

func checkRoundTrip[L limit](t *testing.T, s string, parse func(source, value string) (Set[L], error)) {
	set, err := parse("--flag", s)
	if err != nil {
		expect.True(t, !set.IsSet() && errors.As(err, new(*InputError)), s, "got", set, "with", err)
		return
	}
	back, err := parse("--flag", set.String())
	expect.True(t, err == nil && back == set && set.IsSet(), s, set, "reads back as", back, err)
}

// For people, one GPU is not GPUs.
func TestWords(t *testing.T) {
	for devices, want := range map[Devices]string{0: "4g", 1: "4g, on 1 GPU", 2: "4g, on 2 GPUs", AllDevices: "4g, on all GPUs"} {
		memory, err := ParseMemorySet("memory", "4g")
		expect.Must(t, err == nil, err)
		expect.Equal(t, Limits{Memory: memory, Devices: devices}.Words(), want)
	}
}
