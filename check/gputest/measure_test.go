package gputest

import (
	"math"
	"strings"
	"testing"
)

func TestRow(t *testing.T) {
	s := series{{100, 102, 98}, {100, 100, 100}, {103, 103, 103}}
	r := s.row("x", nanoseconds)
	if r.Ratio != 1.03 || r.Noise != 2.0/102 || r.Rounds != 3 || r.More.Median != 3 {
		t.Errorf("got %+v", r)
	}
	if r := (series{}).row("nothing", nanoseconds); math.IsNaN(r.Ratio) || r.Rounds != 0 {
		t.Errorf("got %+v", r)
	}
}

// Outliers of the native programs do not improve ration's ratio, and count as noise.
func TestRowOfSkewedNoise(t *testing.T) {
	s := series{{100, 150, 100, 150}, {150, 100, 150, 100}, {150, 150, 150, 150}}
	r := s.row("x", nanoseconds)
	if r.Ratio != 1.5 || r.Noise < 0.3 {
		t.Errorf("got %+v", r)
	}
}

func TestWithTarget(t *testing.T) {
	for _, c := range []struct {
		ratio, noise, more float64
		percent, most      float64
		want               string
	}{
		{1.03, 0, 3, 3.5, 0, Kept},
		{1.03, 0, 3, 2, 0, Missed},
		{1.03, 0, 3, 3.5, 2, Missed},
		{1.03, 0, 3, 3.5, 3, Kept},
		{1.03, .01, 3, 2, 0, Missed},
		{1.03, .04, 3, 2, 0, Unclear},
		{1.001, .04, 3, 2, 0, Unclear},
		{0.97, .04, -3, 2, 0, Unclear},
		{0.9, .04, -3, 2, 0, Kept},
		{1.05, .04, 3, 2, 0, Missed},
		{1.03, .04, 3, 2, 2, Missed}, // the target in units is missed in any case
	} {
		r := Row{Ratio: c.ratio, Noise: c.noise, More: Quantiles{Median: c.more}, Unit: nanoseconds}
		if got := r.withTarget(c.percent, c.most).Verdict; got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// A step may make no system call at all: that is a value, unlike memory of which there is none.
func TestNoSystemCallsAreAValue(t *testing.T) {
	c := series{{0}, {0}, {0}}.row("calls", systemCalls).text()
	if c.native != "0.00" || c.ration != "0.00" || c.more != "+0.00" {
		t.Errorf("got %+v", c)
	}
	c = series{{4}, {4}, {5}}.row("calls", systemCalls).text()
	if c.native != "4.00" || c.ration != "5.00" || c.more != "+25.00 %" || c.spread != "+1.00 … +1.00" {
		t.Errorf("got %+v", c)
	}
}

func TestCostsInOrder(t *testing.T) {
	s := series{{100}, {100}, {100}}
	rows := []Row{
		s.row("kept", nanoseconds).withTarget(1, 0),
		s.row("plain", kibibytes),
		series{{7}, {7}, nil}.row("alone", kibibytes),
		{Name: "unclear", Verdict: Unclear},
		{Name: "missed", Verdict: Missed},
		{Name: "without", Why: "needs more"},
	}
	var b strings.Builder
	r := Report{Measures: rows}
	r.costs(&b)
	var names []string
	for line := range strings.Lines(b.String()) {
		if cells := strings.Split(line, "|"); len(cells) > 3 {
			names = append(names, strings.TrimSpace(cells[1]))
			if name := names[len(names)-1]; name == "alone" && strings.TrimSpace(cells[3]+cells[4]+cells[5]) != "" {
				t.Errorf("nothing was measured in a job, but the row is %s", line)
			}
		}
	}
	if got := strings.Join(names[2:], " "); got != "missed without unclear kept plain alone" {
		t.Errorf("got %s", got)
	}
	b.Reset()
	r.Print(&b)
	if !strings.Contains(b.String(), "no value: missed, without; cannot be told: unclear\n") {
		t.Errorf("got %s", b.String())
	}
}
