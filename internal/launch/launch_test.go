package launch

import (
	"slices"
	"strings"
	"testing"

	"ration/internal/abi"
	"ration/internal/gpu"
	"ration/internal/ration"
)

func TestNameOf(t *testing.T) {
	for command, want := range map[string]string{
		"/usr/bin/python3": "python3-", "./my train.sh": "my_train.sh-", "...": "job-", "-x": "x-", "Ünïcode": "_n_code-",
		strings.Repeat("x", 100): strings.Repeat("x", 40) + "-",
	} {
		got := nameOf(command)
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s: got %s, want %s and a PID", command, got, want)
		}
		if err := ration.CheckName("", got); err != nil {
			t.Error(err)
		}
	}
}

func TestEnvironment(t *testing.T) {
	e := environment{"A=1", "B=2", "A=3", "C"}
	e.set("A", "4")
	if want := (environment{"B=2", "C", "A=4"}); !slices.Equal(e, want) {
		t.Errorf("got %q, want %q", e, want)
	}
	if e.get("B") != "2" || e.get("D") != "" {
		t.Errorf("got %q and %q", e.get("B"), e.get("D"))
	}
	for _, tt := range [][3]string{{"", "", ""}, {"a", "", "a"}, {"", "b", "b"}, {"a", "b", "a:b"}} {
		if got := join(tt[0], tt[1]); got != tt[2] {
			t.Errorf("got %q, want %q", got, tt[2])
		}
	}
}

// TestLimits is about machines that no stand-in can be.
func TestLimits(t *testing.T) {
	plan := func(mem string) Plan {
		set, err := ration.ParseMemorySet("--mem", mem)
		if err != nil {
			t.Fatal(err)
		}
		return Plan{Settings: ration.Settings{Memory: set}, Source: "--mem", Warn: func(string) {}}
	}
	whole := &gpu.Driver{Devices: []gpu.Device{{Name: "big", Total: 80 * ration.GiB}, {Index: 1, Name: "small", Total: 8 * ration.GiB}}}
	parts := &gpu.Driver{Devices: []gpu.Device{{Total: 80 * ration.GiB, MIG: true}}}

	if l, err := plan("50%,1=none").limits(whole, nil); err != nil || l.Memory[0] != abi.MakeLimit(40<<30, 0) || l.Memory[1] != abi.Unlimited || l.Memory[2] != 0 {
		t.Errorf("got %v, %v", l.Memory, err)
	}
	if _, err := plan("10g").limits(whole, nil); err == nil || !strings.Contains(err.Error(), "device 1 (small) has 8 GiB (use at most 8g") {
		t.Errorf("got %v for more than a device has", err)
	}
	// Of a part only the processes know the size.
	if l, err := plan("50%").limits(parts, nil); err != nil || l.Memory[0] != 0 {
		t.Errorf("got %v, %v", l.Memory, err)
	}
	if l, err := plan("10g").limits(parts, nil); err != nil || l.Memory[0] != abi.MakeLimit(10<<30, 0) || l.Memory[15] != l.Memory[0] {
		t.Errorf("got %v, %v", l.Memory, err)
	}
}
