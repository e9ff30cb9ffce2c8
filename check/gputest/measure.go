package gputest

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"ration/check/bench"
)

// measure measures one cost of ration. It asks three programs in turn, so that other
// load on the machine affects all of them: one native, one in a job, and another
// native one as a control, which shows how much two identical programs differ.
type measure struct {
	group string // empty is cost
	name  string
	needs []string
	room  uint64 // bytes that must be free on the device
	run   func(*Trial) ([]Row, error)
}

func (m measure) title() string { return cmp.Or(m.group, "cost") + "/" + m.name }

// measures returns all measures, in the order of the report.
func measures() []measure {
	return []measure{
		{name: "alloc", room: 36 * gib, run: (*Trial).allocCost},
		{name: "launch", room: 3 * gib, run: (*Trial).launchCost},
		{name: "start", room: 25 * gib, run: (*Trial).startCost},
		{name: "run", run: (*Trial).runCost},
		{name: "train", needs: []string{torch}, room: 16 * gib, run: (*Trial).trainCost},
		{name: "syscalls", needs: []string{torch}, room: 16 * gib, run: (*Trial).syscallCost},
		{name: "replay", needs: []string{torch}, room: 5 * gib, run: (*Trial).replayCost},
		{name: "memory", room: 4 * gib, run: (*Trial).memoryCost},
		{name: "launch-compute", room: 3 * gib, run: (*Trial).launchComputeCost},
		{name: "train-compute", needs: []string{torch}, room: 16 * gib, run: (*Trial).trainComputeCost},
		{group: "compute", name: "latency", needs: []string{real}, room: 4 * gib, run: (*Trial).latencyCost},
	}
}

// Verdicts of rows that have a target.
const (
	Kept    = "kept"
	Missed  = "missed"
	Unclear = "cannot tell" // the two native programs differ by more than the target, and ration from them by no more than that
)

// Quantiles are the median, and the 10th and 90th percentile.
type Quantiles struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`  // 10th percentile
	High   float64 `json:"high"` // 90th percentile
}

// Row is one cost. If nothing was measured in a job, Ration, More and Ratio are zero.
type Row struct {
	Measure string    `json:"measure"`
	Name    string    `json:"name"`
	Unit    string    `json:"unit"` // ns, KiB or calls
	Native  Quantiles `json:"native"`
	Control Quantiles `json:"control"` // the other native program
	Ration  Quantiles `json:"ration"`
	More    Quantiles `json:"more"`   // in the job minus native, for both native programs of each round
	Ratio   float64   `json:"ratio"`  // in the job divided by native, for the same pairs: the median
	Noise   float64   `json:"noise"`  // the control's relative difference from the native program: the median
	Rounds  int       `json:"rounds"` // of each program
	Target  string    `json:"target,omitempty"`
	Verdict string    `json:"verdict,omitempty"`
	Why     string    `json:"why,omitempty"` // why there are no values
}

// Units of rows.
const (
	nanoseconds = "ns"
	kibibytes   = "KiB"
	systemCalls = "calls"
)

// measure runs one measure in a trial of its own.
func (m *Machine) measure(what measure, quick bool) []Row {
	name := what.title()
	if missing := m.missing(what.needs, what.room); missing != "" {
		return []Row{{Measure: name, Name: what.name, Why: missing}}
	}
	t := m.newTrial(quick)
	defer t.close()
	rows, err := what.run(t)
	if err != nil {
		rows = append(rows, Row{Measure: name, Name: what.name, Why: err.Error() + " " + t.logs()})
	}
	for i := range rows {
		rows[i].Measure = name
	}
	return rows
}

// rounds returns the number of rounds of a measure.
func (t *Trial) rounds(full int) int {
	if t.quick {
		return 2
	}
	return full
}

// trio are the three programs that are compared: native, control, and the one in a
// job.
type trio [3]*Program

// inJob is the index in a trio of the program in a job.
const inJob = 2

// turns returns the order of a trio in a round. Each goes first as often as the
// others.
func turns(round int) []int { return []int{round % 3, (round + 1) % 3, (round + 2) % 3} }

// startTrio starts the three programs and has them carry out a first command.
func (t *Trial) startTrio(limit uint64, first string, command ...string) (three trio, err error) {
	for i := range three {
		if i == inJob {
			if err := t.open(limit); err != nil {
				return three, err
			}
		}
		if three[i], err = t.start(nil, command...); err != nil {
			return three, err
		}
	}
	return three, three.do(first)
}

// do has the three programs carry out a command, one after the other.
func (three trio) do(command string) error {
	for _, p := range three {
		if _, err := p.ask(0, "%s", command); err != nil {
			return err
		}
	}
	return nil
}

// series are the samples of a trio, by program and round.
type series [3]bench.Samples

// add appends other samples.
func (s *series) add(more series) {
	for i := range s {
		s[i] = append(s[i], more[i]...)
	}
}

// compare tells the three programs a command in turn, round after round, and returns
// a series for each of the numbers that they answer.
func (three trio) compare(rounds, numbers int, command string) ([]series, error) {
	out := make([]series, numbers)
	for round := range rounds {
		for _, i := range turns(round) {
			answer, err := three[i].ask(numbers, "%s", command)
			if err != nil {
				return nil, err
			}
			for n := range numbers {
				out[n][i] = append(out[n][i], answer[n])
			}
		}
	}
	return out, nil
}

// times multiplies all samples, to change their unit.
func (s series) times(factor float64) series {
	for i := range s {
		for j := range s[i] {
			s[i][j] *= factor
		}
	}
	return s
}

// row returns the row of a series.
func (s series) row(name, unit string) Row {
	var more, ratio, noise bench.Samples
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
	return Row{Name: name, Unit: unit, Native: quantiles(s[0]), Control: quantiles(s[1]), Ration: quantiles(s[inJob]), More: quantiles(more),
		Ratio: quantiles(ratio).Median, Noise: quantiles(noise).Median, Rounds: len(s[0])}
}

func quantiles(s bench.Samples) Quantiles {
	slices.Sort(s)
	return Quantiles{s.Percentile(50), s.Percentile(10), s.Percentile(90)}
}

// withTarget sets the target of a row: at most so many per cent more, and at most so
// many of its units, unless that is 0. If the native programs differ by more than the
// target, a difference no larger than theirs decides nothing.
func (r Row) withTarget(percent, most float64) Row {
	r.Target, r.Verdict = fmt.Sprintf("≤ +%g %%", percent), Kept
	switch {
	case r.Noise > percent/100 && math.Abs(r.Ratio-1) <= r.Noise:
		r.Verdict = Unclear
	case r.Ratio > 1+percent/100:
		r.Verdict = Missed
	}
	if most > 0 {
		r.Target += fmt.Sprintf(", ≤ +%g %s", most, r.Unit)
		if r.More.Median > most {
			r.Verdict = Missed
		}
	}
	return r
}
