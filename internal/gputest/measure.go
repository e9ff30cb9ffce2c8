package gputest

import (
	"fmt"
	"math"
	"slices"

	"ration/internal/bench"
)

// measure is something ration costs. It is measured on three programs that are
// asked in turn, so that whatever the machine does meanwhile falls on all of them: one
// native, one in a job, and one more native, which shows how much two of the same
// differ.
type measure struct {
	name  string
	needs []string
	room  uint64
	run   func(*Stage) ([]Row, error)
}

func (m measure) title() string { return "cost/" + m.name }

// measures are all there are.
func measures() []measure {
	return []measure{
		{name: "alloc", room: 36 * gib, run: (*Stage).allocCost},
		{name: "launch", room: 3 * gib, run: (*Stage).launchCost},
		{name: "start", room: 25 * gib, run: (*Stage).startCost},
		{name: "train", needs: []string{torch}, room: 16 * gib, run: (*Stage).trainCost},
		{name: "memory", room: 4 * gib, run: (*Stage).memoryCost},
	}
}

// Verdicts of rows that have a target.
const (
	Kept    = "kept"
	Missed  = "missed"
	Unclear = "cannot tell" // two of the same differ by more than the target, and this by no more than they
)

// Figure is the median of some rounds, with the middle eight tenths.
type Figure struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`  // 10th percentile
	High   float64 `json:"high"` // 90th
}

// Row is one figure, native and in a job. Where nothing was measured in a job, Ration,
// More and Ratio are zero.
type Row struct {
	Measure string  `json:"measure"`
	Name    string  `json:"name"`
	Unit    string  `json:"unit"` // ns or KiB
	Native  Figure  `json:"native"`
	Control Figure  `json:"control"` // native once more, in the same rounds
	Ration  Figure  `json:"ration"`
	More    Figure  `json:"more"`   // in a job than each of the native ones of its round
	Ratio   float64 `json:"ratio"`  // to each of these: the median
	Noise   float64 `json:"noise"`  // by which share the second native one is off the first, either way: the median
	Rounds  int     `json:"rounds"` // behind each
	Target  string  `json:"target,omitempty"`
	Verdict string  `json:"verdict,omitempty"`
	Why     string  `json:"why,omitempty"` // there are no figures
}

// Units of rows.
const (
	nanoseconds = "ns"
	kibibytes   = "KiB"
)

// measure runs one measure and sees to it that nothing of it is left.
func (m *Machine) measure(what measure, quick bool) []Row {
	name := what.title()
	if missing := m.lacks(what.needs, what.room); missing != "" {
		return []Row{{Measure: name, Name: what.name, Why: missing}}
	}
	s := m.stage(quick)
	defer s.close()
	rows, err := what.run(s)
	if err != nil {
		rows = append(rows, Row{Measure: name, Name: what.name, Why: err.Error() + " " + s.said()})
	}
	for i := range rows {
		rows[i].Measure = name
	}
	return rows
}

// rounds is how often something is measured.
func (s *Stage) rounds(full int) int {
	if s.quick {
		return 2
	}
	return full
}

// trio are the three programs that are compared.
type trio struct {
	native, control, rationed *Program
}

// turns are the members of a trio in the order of a round: each goes first as often as
// the others.
func turns(round int) []int { return []int{round % 3, (round + 1) % 3, (round + 2) % 3} }

func (t trio) program(i int) *Program { return [...]*Program{t.native, t.control, t.rationed}[i] }

// startTrio starts the three and tells them to begin.
func (s *Stage) startTrio(limit uint64, begin string, command ...string) (t trio, err error) {
	for i, into := range []**Program{&t.native, &t.control, &t.rationed} {
		if i == 2 {
			if err := s.open(limit); err != nil {
				return t, err
			}
		}
		if *into, err = s.start(nil, command...); err != nil {
			return t, err
		}
	}
	return t, t.tellAll(begin)
}

// tellAll has the three do something, one after the other.
func (t trio) tellAll(line string) error {
	for i := range 3 {
		if _, err := t.program(i).ask(0, "%s", line); err != nil {
			return err
		}
	}
	return nil
}

// series are what was measured, by member and round.
type series [3]bench.Samples

// add appends what was measured elsewhere.
func (s *series) add(more series) {
	for i := range s {
		s[i] = append(s[i], more[i]...)
	}
}

// compare asks the three in turn, and returns a series for each of the figures that
// they answer with.
func (t trio) compare(rounds, figures int, line string) ([]series, error) {
	out := make([]series, figures)
	for round := range rounds {
		for _, i := range turns(round) {
			answer, err := t.program(i).ask(figures, "%s", line)
			if err != nil {
				return nil, err
			}
			for f := range figures {
				out[f][i] = append(out[f][i], answer[f])
			}
		}
	}
	return out, nil
}

// times multiplies, for another unit.
func (s series) times(factor float64) series {
	for i := range s {
		for j := range s[i] {
			s[i][j] *= factor
		}
	}
	return s
}

// row sums a series up.
func (s series) row(name, unit string) Row {
	var more, ratio, noise bench.Samples
	for i, native := range s[0] {
		if native > 0 {
			noise = append(noise, math.Abs(s[1][i]-native)/native)
		}
	}
	// Beside each of the two by itself: their mean would be the larger for every outlier
	// among them, and a job look the better for it.
	for i, rationed := range s[2] {
		for _, native := range []float64{s[0][i], s[1][i]} {
			more = append(more, rationed-native)
			if native > 0 {
				ratio = append(ratio, rationed/native)
			}
		}
	}
	return Row{Name: name, Unit: unit, Native: sumUp(s[0]), Control: sumUp(s[1]), Ration: sumUp(s[2]), More: sumUp(more),
		Ratio: sumUp(ratio).Median, Noise: sumUp(noise).Median, Rounds: len(s[0])}
}

func sumUp(s bench.Samples) Figure {
	slices.Sort(s)
	return Figure{s.Percentile(50), s.Percentile(10), s.Percentile(90)}
}

// within gives a row its target: at most so many hundredths more, and at most so
// many of its units, where that is said. A difference that two natives have as well
// says nothing about the hundredths, unless they differ by less than those.
func (r Row) within(percent, most float64) Row {
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
