package usage

import (
	"fmt"
	"math"
	"testing"
	"time"

	"ration/check/expect"
)

// A plot has what its report has, whatever the resolution of the accounts.
func TestPlot(t *testing.T) {
	s, _ := openTest(t)
	end := monday.Add(50*time.Hour + 17*time.Minute + 20*time.Second)
	for at := monday; at.Before(end); at = at.Add(Step) {
		p := Period{At: at, Watched: Step, Sums: map[Subject]Sums{train: {Held: 36, Idle: 18, Measured: 4e9, Sampled: 1e9}}}
		if at.Sub(monday)/time.Hour == 49 { // nobody watched
			continue
		}
		if at.Sub(monday)%time.Hour < time.Minute {
			for n := range 30 {
				p.Sums[Subject{UID: 2000 + n, Owner: fmt.Sprint("user", n), Job: "a", Device: "GPU-0"}] = Sums{Held: 6}
			}
		}
		expect.OK(t, s.Add(p))
	}
	for name, tt := range map[string]struct {
		ago, step time.Duration
	}{
		"ten minutes": {10 * time.Minute, Step},
		"an hour":     {time.Hour, time.Minute},
		"a day":       {24 * time.Hour, 10 * time.Minute},
		"two days":    {48 * time.Hour, 30 * time.Minute},
		"a week":      {7 * 24 * time.Hour, time.Hour},
		"a year":      {365 * 24 * time.Hour, 48 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := s.ReportPlot(end.Add(-tt.ago), end, ByUser, everybody)
			expect.OK(t, err)
			p := r.Plot
			expect.Equal(t, p.Step, tt.step.Seconds())
			expect.True(t, len(p.All) <= maxPoints+max(1, int(time.Hour/tt.step)) && len(p.Watched) == len(p.All) && !p.From.After(end.Add(-tt.ago)), len(p.All), p.From)
			expect.Equal(t, len(p.Lines), min(len(r.Lines), PlotLines))
			var all, first Point
			var watched float64
			for i := range p.All {
				all.Held, all.Idle, all.Seconds = all.Held+p.All[i].Held, all.Idle+p.All[i].Idle, all.Seconds+p.All[i].Seconds
				first.Held, first.Idle = first.Held+p.Lines[0][i].Held, first.Idle+p.Lines[0][i].Idle
				expect.True(t, p.Watched[i] <= p.Step+1e-6, i, p.Watched[i])
				watched += p.Watched[i]
			}
			near := func(a, b float64) bool { return math.Abs(a-b) <= 0.001*b+1 }
			expect.True(t, near(float64(all.Held), float64(r.Total.Held)) && near(float64(all.Idle), float64(r.Total.Idle)) && near(all.Seconds, r.Total.Seconds), all, r.Total)
			expect.True(t, near(float64(first.Held), float64(r.Lines[0].Held)), first, r.Lines[0])
			expect.True(t, near(watched, r.Watched), watched, r.Watched)
		})
	}
	// The hour that nobody watched is a gap.
	day, err := s.ReportPlot(end.Add(-24*time.Hour), end, ByUser, everybody)
	expect.OK(t, err)
	at := int(monday.Add(49*time.Hour+30*time.Minute).Sub(day.Plot.From).Seconds() / day.Plot.Step)
	expect.True(t, day.Plot.Watched[at] == 0 && day.Plot.All[at] == Point{} && day.Plot.Watched[at-6] == 600, day.Plot.Watched)
	// What is not visible is in no curve.
	mine, err := s.ReportPlot(end.Add(-24*time.Hour), end, ByUser, func(uid int) bool { return uid == 2000 })
	expect.OK(t, err)
	expect.True(t, len(mine.Plot.Lines) == 1 && mine.Plot.All[0].Seconds == 0, mine.Plot.All[0])
}
