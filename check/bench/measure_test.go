package bench

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"ration/check/expect"
)

func TestPercentile(t *testing.T) {
	var s Samples
	for i := range 1000 {
		s = append(s, float64(999-i))
	}
	slices.Sort(s)
	for p, want := range map[float64]float64{0: 0, 10: 100, 50: 500, 99: 990, 99.9: 999, 100: 999} {
		got := s.Percentile(p)
		expect.True(t, math.Abs(got-want) <= 1, "p", p, got, want)
	}
	expect.Equal(t, (Samples{}).Percentile(50), 0, "of nothing")
	row := s.row("x", Nanoseconds)
	expect.True(t, row.Value == 500 && row.Low == 100 && row.High == 900 && row.Samples == 1000, row)
}

func TestAlternate(t *testing.T) {
	order := ""
	do := func(name string) func() (float64, error) {
		return func() (float64, error) { order += name; return 1, nil }
	}
	got, err := alternate(4, do("a"), do("b"), do("c"))
	expect.True(t, err == nil && order == "abcbcacababc" && len(got) == 3 && len(got[2]) == 4,
		order, got, err, "each must go first in turn")
	broken := errors.New("broken")
	_, err = alternate(3, do("a"), func() (float64, error) { return 0, broken })
	expect.True(t, errors.Is(err, broken), err, "want the operation's error")
}

func TestTargets(t *testing.T) {
	row := Row{Value: 60}.relativeTo(Row{Value: 6})
	expect.True(t, row.Ratio == 10 && row.Atomic == 6, row)
	if r := row.withTarget(row.Ratio, 10, "≤ 10 ×"); r.Verdict != OK || r.Target != "≤ 10 ×" {
		t.Errorf("got %+v", r)
	}
	if r := row.withTarget(row.Ratio, 9, ""); r.Verdict != Over {
		t.Errorf("got %+v", r)
	}
	for lang, want := range map[language]string{inC: Over, inGo: ""} {
		r := row.in(lang).judge(50, "< 50 ns")
		expect.Equal(t, r.Verdict, want, lang, r, "targets are for C")
	}
}

func TestMachine(t *testing.T) {
	m, err := ThisHost()
	expect.True(t, err == nil && m.Cores >= 1 && m.CPU != "" && strings.HasPrefix(m.Kernel, "Linux ") && m.FileSystem != "", m, err)
}
