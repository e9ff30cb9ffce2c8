package gputest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"ration/check/bench"
	"ration/check/benchpage"
	"ration/internal/humanfmt"
)

// Verdicts of rows that have a target.
const (
	kept    = "kept"
	missed  = "missed"
	unclear = "cannot tell" // the two native programs differ by more than the target, and ration from them by no more than that
)

// row is one cost. Its spreads are the median, and the 10th and 90th percentile. If nothing was measured in a job, Ration, More and Ratio are zero.
type row struct {
	Name    string           `json:"name"`
	Unit    string           `json:"unit"` // ns, KiB or calls
	Native  benchpage.Spread `json:"native"`
	Control benchpage.Spread `json:"control"` // the other native program
	Ration  benchpage.Spread `json:"ration"`
	More    benchpage.Spread `json:"more"`   // in the job minus native, for both native programs of each round
	Ratio   float64          `json:"ratio"`  // in the job divided by native, for the same pairs: the median
	Noise   float64          `json:"noise"`  // the control's relative difference from the native program: the median
	Rounds  int              `json:"rounds"` // of each program
	Target  string           `json:"target,omitempty"`
	Verdict string           `json:"verdict,omitempty"`
}

// Units of rows.
const (
	nanoseconds = "ns"
	kibibytes   = "KiB"
	systemCalls = "calls"
)

// trio are the three programs that are compared in turn, so that other load on the machine
// affects all of them: one native, another native one as a control, which shows how much
// two identical programs differ, and one in a job.
type trio [3]*program

// inJob is the index in a trio of the program in a job.
const inJob = 2

// turns returns the order of a trio in a round. Each goes first as often as the
// others.
func turns(round int) []int { return []int{round % 3, (round + 1) % 3, (round + 2) % 3} }

// startTrio starts the three programs and has them carry out a first command.
func (t *trial) startTrio(limit uint64, first string, command ...string) (three trio) {
	for i := range three {
		if i == inJob {
			t.open(limit)
		}
		three[i] = t.start(nil, command...)
	}
	three.do(first)
	return three
}

// do has the three programs carry out a command, one after the other.
func (three trio) do(format string, args ...any) {
	for _, p := range three {
		p.ask(0, format, args...)
	}
}

// series are the samples of a trio, by program and round.
type series [3]bench.Samples

// alternate calls sample for each program of a trio in turn, round after round. sample
// returns a value for each row.
func alternate(rounds, values int, sample func(i int) []float64) []series {
	out := make([]series, values)
	for round := range rounds {
		for _, i := range turns(round) {
			for n, value := range sample(i)[:values] {
				out[n][i] = append(out[n][i], value)
			}
		}
	}
	return out
}

// compare tells the three programs a command in turn, round after round, and returns a
// series for each of the numbers that they answer. The first round does not count: caches
// and clocks adapt to the command in it.
func (three trio) compare(rounds, numbers int, command string) []series {
	ask := func(i int) []float64 { return three[i].ask(numbers, "%s", command) }
	alternate(1, numbers, ask)
	return alternate(rounds, numbers, ask)
}

// row returns the row of a series, whose samples are times the unit.
func (s series) row(name, unit string, times float64) row {
	var more, ratio, noise bench.Samples
	for _, samples := range s {
		for i := range samples {
			samples[i] *= times
		}
	}
	for i, native := range s[0] {
		if native > 0 {
			noise = append(noise, math.Abs(s[1][i]-native)/native)
		}
	}
	// Compared with each native program by itself: an outlier would raise the mean of
	// the two, and make ration look better.
	for i, rationed := range s[inJob] {
		for _, native := range []float64{s[0][i], s[1][i]} {
			more = append(more, rationed-native)
			if native > 0 {
				ratio = append(ratio, rationed/native)
			}
		}
	}
	return row{Name: name, Unit: unit, Native: spread(s[0]), Control: spread(s[1]), Ration: spread(s[inJob]), More: spread(more),
		Ratio: spread(ratio).Median, Noise: spread(noise).Median, Rounds: len(s[0])}
}

func spread(s bench.Samples) benchpage.Spread {
	slices.Sort(s)
	return benchpage.Spread{Low: s.Percentile(10), Median: s.Percentile(50), High: s.Percentile(90)}
}

// withTarget sets the target of a row: at most so many per cent more, and at most so
// many of its units, unless that is 0. If the native programs differ by more than the
// target, a difference no larger than theirs decides nothing.
func (r row) withTarget(percent, most float64) row {
	r.Target, r.Verdict = fmt.Sprintf("≤ +%g %%", percent), kept
	switch {
	case r.Noise > percent/100 && math.Abs(r.Ratio-1) <= r.Noise:
		r.Verdict = unclear
	case r.Ratio > 1+percent/100:
		r.Verdict = missed
	}
	if most > 0 {
		r.Target += fmt.Sprintf(", ≤ +%g %s", most, r.Unit)
		if r.More.Median > most {
			r.Verdict = missed
		}
	}
	return r
}

// within sets the target of a row: at most so many of its units more. Where the two native
// programs differ by more than that, and ration from them by no more than they from each
// other, it decides nothing.
func (r row) within(most float64) row {
	r.Target, r.Verdict = "≤ +"+r.amount(most), kept
	if r.More.Median > most {
		r.Verdict = missed
		if r.More.Median <= r.Noise*r.Native.Median {
			r.Verdict = unclear
		}
	}
	return r
}

// amount renders a value of a row.
func (r row) amount(v float64) string {
	switch r.Unit {
	case kibibytes:
		return humanfmt.Bytes(uint64(v * 1024))
	case systemCalls:
		return fmt.Sprintf("%.2f", v)
	}
	return humanfmt.Nanoseconds(v)
}

// shown returns a row as people see it. Both native programs are one there.
func (r row) shown() benchpage.Comparison {
	signed := func(v float64) string {
		if v < 0 {
			return "-" + r.amount(-v)
		}
		return "+" + r.amount(v)
	}
	native := (r.Native.Median + r.Control.Median) / 2
	c := benchpage.Comparison{
		Name: r.Name, NativeText: r.amount(native), Target: r.Target, Verdict: r.Verdict,
		Native: benchpage.Spread{Low: min(r.Native.Low, r.Control.Low), Median: native, High: max(r.Native.High, r.Control.High)},
	}
	if native > 0 {
		c.Noise = fmt.Sprintf("%.1f %%", 100*r.Noise)
	}
	if r.Ration == (benchpage.Spread{}) && r.Unit != systemCalls {
		return c // native only; but a step may well make no system call
	}
	c.Job, c.JobText = r.Ration, r.amount(r.Ration.Median)
	c.More, c.MoreSpread = signed(r.More.Median), signed(r.More.Low)+" … "+signed(r.More.High)
	if native > 0 {
		c.More = fmt.Sprintf("%+.2f %%", 100*(r.Ratio-1))
	}
	return c
}

// cost reports a row: as an attribute of the test for programs, as text for people.
func (t *trial) cost(r row) {
	text, err := json.Marshal(r)
	t.must(err)
	t.Attr("cost", string(text))
	c := r.shown()
	report.page.Comparisons = append(report.page.Comparisons, c)
	t.note("%s %s", r.Name, cmp.Or(c.More, c.NativeText))
}
