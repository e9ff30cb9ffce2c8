package bench

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

func TestPercentile(t *testing.T) {
	var s Samples
	for i := range 1000 {
		s = append(s, float64(999-i))
	}
	slices.Sort(s)
	for p, want := range map[float64]float64{0: 0, 10: 100, 50: 500, 99: 990, 99.9: 999, 100: 999} {
		if got := s.Percentile(p); math.Abs(got-want) > 1 {
			t.Errorf("p%v: got %v, want %v", p, got, want)
		}
	}
	if got := (Samples{}).Percentile(50); got != 0 {
		t.Errorf("got %v of nothing", got)
	}
	row := s.row("x", Nanoseconds)
	if row.Value != 500 || row.Low != 100 || row.High != 900 || row.Samples != 1000 {
		t.Errorf("got %+v", row)
	}
}

func TestAlternate(t *testing.T) {
	order := ""
	do := func(name string) func() (float64, error) {
		return func() (float64, error) { order += name; return 1, nil }
	}
	got, err := alternate(4, do("a"), do("b"), do("c"))
	if err != nil || order != "abcbcacababc" || len(got) != 3 || len(got[2]) != 4 {
		t.Errorf("got %s, %v, %v: each must go first in turn", order, got, err)
	}
	broken := errors.New("broken")
	if _, err := alternate(3, do("a"), func() (float64, error) { return 0, broken }); !errors.Is(err, broken) {
		t.Errorf("got %v, want the operation's error", err)
	}
}

func TestTargets(t *testing.T) {
	row := Row{Value: 60}.relativeTo(Row{Value: 6})
	if row.Ratio != 10 || row.Atomic != 6 {
		t.Errorf("got %+v", row)
	}
	if r := row.withTarget(row.Ratio, 10, "≤ 10 ×"); r.Verdict != OK || r.Target != "≤ 10 ×" {
		t.Errorf("got %+v", r)
	}
	if r := row.withTarget(row.Ratio, 9, ""); r.Verdict != Over {
		t.Errorf("got %+v", r)
	}
	for lang, want := range map[language]string{inC: Over, inGo: ""} {
		if r := row.in(lang).judge(50, "< 50 ns"); r.Verdict != want {
			t.Errorf("%s: got %+v: targets are for C", lang, r)
		}
	}
}

func TestMachine(t *testing.T) {
	m, err := ThisMachine()
	if err != nil || m.Cores < 1 || m.CPU == "" || !strings.HasPrefix(m.Kernel, "Linux ") || m.FileSystem == "" {
		t.Errorf("got %+v, %v", m, err)
	}
}
