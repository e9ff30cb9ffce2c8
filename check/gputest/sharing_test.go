package gputest

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestPerSecond(t *testing.T) {
	p := progress{step: 100 * time.Millisecond, counts: []float64{1, 2, 3, 4, 5}}
	for _, c := range []struct {
		from, until time.Duration
		want        float64
	}{
		{0, 500 * time.Millisecond, 30},
		{200 * time.Millisecond, 400 * time.Millisecond, 35},
		{400 * time.Millisecond, 600 * time.Millisecond, 25}, // what was not recorded is nothing
	} {
		if got := p.perSecond(c.from, c.until); got != c.want {
			t.Errorf("%v to %v: got %v, want %v", c.from, c.until, got, c.want)
		}
	}
}

// Shares are compared with what was asked for, in points; of more than the whole, by
// weight.
func TestCheckShares(t *testing.T) {
	for _, c := range []struct {
		rates, want []float64
		within      bool
	}{
		{[]float64{30, 70}, []float64{30, 70}, true},
		{[]float64{28.1, 71.9}, []float64{30, 70}, true},
		{[]float64{27.9, 72.1}, []float64{30, 70}, false},
		{[]float64{1, 2}, []float64{50, 100}, true},
		{[]float64{1, 1}, []float64{50, 100}, false},
		{[]float64{0, 0}, []float64{50, 50}, false},
	} {
		trial := &Trial{values: map[string]int64{}}
		got := ratios(c.rates, 100)
		if err := trial.checkShares("x ", got, 2, c.want...); (err == nil) != c.within {
			t.Errorf("%v of %v: %v (%v)", c.rates, c.want, err, got)
		}
	}
	trial := &Trial{values: map[string]int64{}}
	if err := trial.checkShares("", ratios([]float64{29, 67}, 100), 2, 30, 70); err != nil || trial.summary() != "30/70: 30.2/69.8, together 96.0 %" {
		t.Errorf("got %q, %v", trial.summary(), err)
	}
	if trial.values["worst_milli"] != 208 {
		t.Errorf("got %v", trial.values)
	}
}

func TestCheckCap(t *testing.T) {
	for had, within := range map[float64]bool{48.1: true, 51.9: true, 47.9: false, 52.1: false} {
		trial := &Trial{values: map[string]int64{}}
		if err := trial.checkCap(50, had); (err == nil) != within {
			t.Errorf("%v: %v", had, err)
		}
	}
}

func TestWithin(t *testing.T) {
	row := func(more, noise float64) Row {
		return Row{Unit: nanoseconds, Native: Quantiles{Median: 1000}, More: Quantiles{Median: more}, Noise: noise}
	}
	for _, c := range []struct {
		more, noise float64
		want        string
	}{{20, 0, Kept}, {21, 0, Missed}, {21, 0.05, Unclear}, {60, 0.05, Missed}, {-5, 0.5, Kept}} {
		if got := row(c.more, c.noise).within(20).Verdict; got != c.want {
			t.Errorf("%v more with noise %v: %s", c.more, c.noise, got)
		}
	}
}

func TestSharerFlags(t *testing.T) {
	got := strings.Join(sharer{share: 30, cap: 50, round: "2ms"}.flags(), " ")
	if got != "--compute 30 --compute-max 50 --compute-round 2ms" || len((sharer{}).flags()) != 0 {
		t.Errorf("got %q", got)
	}
	trial := &Trial{Machine: &Machine{}, flags: []string{"--compute", "30"}}
	trial.job.Name = "x"
	if command := trial.inJob([]string{"true"}); !slices.Equal(command[4:], []string{"--join", "--mem", "0", "--compute", "30", "--", "true"}) {
		t.Errorf("got %q", command)
	}
}
