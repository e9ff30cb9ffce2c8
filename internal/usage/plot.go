package usage

import "time"

// Plot is a report over time: its time in steps of equal length. The lines that held most have curves of their
// own; All is of all lines.
type Plot struct {
	From    time.Time `json:"from"` // beginning of the first step
	Step    float64   `json:"step_seconds"`
	Watched []float64 `json:"watched_seconds"` // how much of each step an agent has watched
	All     []Point   `json:"all"`
	Lines   [][]Point `json:"lines"` // of the first lines of the report
}

// Point is the use in one step of a plot.
type Point struct {
	Held    uint64  `json:"held_byte_seconds"`
	Idle    uint64  `json:"idle_byte_seconds"`
	Seconds float64 `json:"gpu_seconds"`
}

const (
	// PlotLines is how many lines of a report have a curve.
	PlotLines = 24
	// maxPoints bounds the steps of a plot.
	maxPoints = 192
)

// plotSteps are the lengths that the steps of a plot may have.
var plotSteps = []time.Duration{Step, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute,
	time.Hour, 2 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour, 48 * time.Hour, 7 * 24 * time.Hour}

// plotStep returns the length of the steps between two times.
func plotStep(from, to time.Time) time.Duration {
	for _, step := range plotSteps {
		if to.Sub(from) <= maxPoints*step {
			return step
		}
	}
	return (to.Sub(from)/maxPoints/time.Hour + 1) * time.Hour
}

// ReportPlot returns a report with a plot. It begins at the full hour unless it is shorter than half an hour, because
// older accounts are kept in hours. Steps of days begin with the day, in UTC, as the days of the file do.
func (s *Store) ReportPlot(from, to time.Time, by string, visible func(uid int) bool) (Report, error) {
	from = from.Truncate(Step)
	if plotStep(from, to) >= time.Minute {
		from = from.Truncate(time.Hour)
	}
	step := plotStep(from, to)
	out, err := s.Report(from, to, by, visible)
	if err != nil {
		return out, err
	}
	began := from
	if step >= levels[days].span {
		began = from.Truncate(levels[days].span)
	}
	n := max(1, int((to.Sub(began)+step-1)/step))
	p := &Plot{From: began.UTC(), Step: step.Seconds(), Watched: make([]float64, n), All: make([]Point, n), Lines: make([][]Point, min(len(out.Lines), PlotLines))}
	curves := map[Line]int{}
	for i := range p.Lines {
		p.Lines[i] = make([]Point, n)
		curves[out.Lines[i].key()] = i
	}
	index := indexed(by, visible, func(key Line) int {
		if at, has := curves[key]; has {
			return at
		}
		return len(p.Lines)
	})
	_, err = s.read(from, to, step, func(a *Account) {
		line := index(a)
		if line < 0 {
			return
		}
		spread(a.At.Sub(began), a.Span, step, n, func(at int, part float64) {
			p.All[at].add(&a.Sums, part)
			if line < len(p.Lines) {
				p.Lines[line][at].add(&a.Sums, part)
			}
		})
	}, func(at time.Time, span, seen time.Duration) {
		spread(at.Sub(began), span, step, n, func(i int, part float64) { p.Watched[i] += seen.Seconds() * part })
	})
	out.Plot = p
	return out, err
}

// spread calls add with each of n steps that a period overlaps, and with the part of the period in it. What is
// outside of all steps belongs to the first or the last one.
func spread(begin, span, step time.Duration, n int, add func(at int, part float64)) {
	end := begin + span
	if i := int(begin / step); begin >= 0 && i < n && end <= time.Duration(i+1)*step {
		add(i, 1)
		return
	}
	for i := clamp(int(begin/step), n); ; i++ {
		from, to := time.Duration(i)*step, time.Duration(i+1)*step
		if i == 0 {
			from = min(from, begin)
		}
		if i == n-1 {
			to = max(to, end)
		}
		if part := min(to, end) - max(from, begin); part > 0 {
			add(i, float64(part)/float64(span))
		}
		if to >= end || i == n-1 {
			return
		}
	}
}

func clamp(i, n int) int { return min(max(i, 0), n-1) }

// add adds a part of the sums of a period.
func (p *Point) add(s *Sums, part float64) {
	p.Seconds += (float64(s.Measured) + float64(s.Sampled)) / 1e9 * part
	if part == 1 {
		p.Held, p.Idle = saturate(p.Held, s.Held), saturate(p.Idle, s.Idle)
		return
	}
	p.Held = saturate(p.Held, uint64(float64(s.Held)*part))
	p.Idle = saturate(p.Idle, uint64(float64(s.Idle)*part))
}
