package web

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"ration/internal/humanfmt"
	"ration/internal/termtext"
	"ration/internal/usage"
)

// plotWidth is the width of a plot, in SVG units: that of the charts, because both share patterns.
const plotWidth = slotCount

// maxRows bounds the rows of a report's table.
const maxRows = 500

// usageView is a report for the templates.
type usageView struct {
	Scope, Period string
	Figures       []figure
	Plots         []plotView
	Head, OfHead  string // headings of the first columns; OfHead may be empty
	Rows          []usageRow
	Hidden        int    // rows that are left out
	Unwatched     string // how much of the time nobody watched; empty for none
	Sampled       bool   // a time is from samples
	Shared        bool   // a time has turns of others in it
	Asleep        bool   // a job slept
	Brush         *brush // nil if no time can be selected
}

// brush is the part of the plots that is not selected, in per cent of their width.
type brush struct{ Before, AfterX, After string }

// usageRow is a line of a report.
type usageRow struct {
	Class, Pattern          string
	Name, Of                string
	Hours, Held, Idle       string
	Reserved, Peak          string
	Refused, Died, Asleep   string
	HeldWidth, WorkingWidth string // of its bar: all that it held, and the part that was not idle
}

// plotView is one quantity of a report over time.
type plotView struct {
	Title, Summary string
	Full, Half     string
	Areas          []area
	Gaps           string // path of the steps that nobody watched
	Ticks          []tick
	Width, Height  int
	First, Last    string // times of its edges
}

// tick is a label of the time axis.
type tick struct{ X, Label string }

var heads = map[string]string{usage.ByUser: "User", usage.ByProject: "Project", usage.ByJob: "Job", usage.ByGPU: "GPU"}

// nameOf returns what a line is about, and the rest of its key.
func nameOf(by string, l usage.Line) (name, of string) {
	switch by {
	case usage.ByProject:
		return cmp.Or(termtext.Printable(l.Project), "(no project)"), ""
	case usage.ByJob:
		return termtext.Printable(l.Job), termtext.Printable(strings.TrimSuffix(l.User+" · "+l.Project, " · "))
	case usage.ByGPU:
		return termtext.Printable(l.GPU), ""
	}
	return termtext.Printable(l.User), ""
}

// viewUsage prepares a report, with the plots if it has any.
func viewUsage(r *usage.Report, col *colours, zone *time.Location) usageView {
	const layout = "Mon 2 Jan 2006 15:04"
	t := r.Total
	v := usageView{Period: r.From.In(zone).Format(layout) + " – " + r.To.In(zone).Format(layout), Head: heads[r.By], Sampled: t.Sampled > 0, Shared: t.Shared > 0,
		Figures: []figure{{t.Hours(), "of the GPUs’ time"}, {humanfmt.GiBHours(t.Held), "held"}, {t.IdlePart(), "of it idle"}, {humanfmt.GiBHours(t.Reserved), "reserved"}}}
	if r.By == usage.ByJob {
		v.OfHead = "User"
	}
	if t.Asleep > 0 {
		v.Asleep = true
		v.Figures = append(v.Figures, figure{t.AsleepHours(), "asleep"})
	}
	if t.Refused > 0 {
		v.Figures = append(v.Figures, figure{humanfmt.Count(t.Refused), "refused"})
	}
	if t.Died > 0 {
		v.Figures = append(v.Figures, figure{humanfmt.Count(t.Died), "died"})
	}
	if all := r.To.Sub(r.From).Seconds(); r.Watched < 0.999*all {
		v.Unwatched = humanfmt.Span(time.Duration((all - r.Watched) * float64(time.Second)))
	}
	held, most := map[string]uint64{}, uint64(1)
	for i, l := range r.Lines[:min(len(r.Lines), usage.PlotLines)] {
		held[lineID(r.By, l)] = l.Held + uint64(usage.PlotLines-i) // a colour also for a line that held nothing
	}
	col.assign(held)
	for i, l := range r.Lines {
		if i >= maxRows {
			v.Hidden = len(r.Lines) - maxRows
			break
		}
		most = max(most, l.Held)
		s := col.style(lineID(r.By, l))
		row := usageRow{Class: s.Class(), Pattern: s.Pattern(), Hours: l.Hours(), Held: humanfmt.GiBHours(l.Held), Idle: l.IdlePart(), Reserved: humanfmt.GiBHours(l.Reserved), Peak: humanfmt.Bytes(l.Peak), Asleep: l.AsleepHours(),
			HeldWidth: percentOf(l.Held, most), WorkingWidth: percentOf(l.Held-min(l.Held, l.Idle), most)}
		row.Name, row.Of = nameOf(r.By, l)
		if l.Refused > 0 {
			row.Refused = humanfmt.Count(l.Refused)
		}
		if l.Died > 0 {
			row.Died = humanfmt.Count(l.Died)
		}
		v.Rows = append(v.Rows, row)
	}
	if r.Plot != nil {
		v.Plots = plotsOf(r, col, zone)
	}
	return v
}

// lineID names a line for its colour. On a page by user it is the user's name, as in the page's other parts.
func lineID(by string, l usage.Line) string {
	name, of := nameOf(by, l)
	return strings.TrimSuffix(name+"\x00"+of, "\x00")
}

func percentOf(part, whole uint64) string {
	return strconv.FormatFloat(100*float64(part)/float64(max(1, whole)), 'f', 2, 64) + "%"
}

// plotsOf draws the device's time, the memory held, and the idle part of it.
func plotsOf(r *usage.Report, col *colours, zone *time.Location) []plotView {
	gpus := func(v float64) string { return trimZeros(v) + " GPUs" }
	memory := func(v float64) string { return humanfmt.Bytes(uint64(v)) }
	ceilMemory := func(v float64) float64 { return niceCeil(v/(1<<30), 2) * (1 << 30) }
	return []plotView{
		plotOf(r, col, zone, "GPUs in use", gpus, func(v float64) float64 { return max(1, niceCeil(v, 10)) }, func(p usage.Point) float64 { return p.Seconds }),
		plotOf(r, col, zone, "Memory held", memory, ceilMemory, func(p usage.Point) float64 { return float64(p.Held) }),
		plotOf(r, col, zone, "Held but idle", memory, ceilMemory, func(p usage.Point) float64 { return float64(p.Idle) }),
	}
}

func trimZeros(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// niceCeil returns a round number that is at least v: 1, 2, 3, 4, 5, 6 or 8 times a power of the base.
func niceCeil(v, base float64) float64 {
	if v <= 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return 1
	}
	unit := math.Pow(base, math.Floor(math.Log(v)/math.Log(base)))
	steps := []float64{1, 2, 3, 4, 5, 6, 8, 10}
	if base == 2 {
		steps = []float64{1, 1.25, 1.5, 1.75, 2}
	}
	for _, n := range steps {
		if v <= n*unit*(1+1e-9) {
			return n * unit
		}
	}
	return base * unit
}

// plotOf draws one quantity: the mean of each step over the time of it that was watched, stacked by line.
func plotOf(r *usage.Report, col *colours, zone *time.Location, title string, text func(float64) string, ceil func(float64) float64, get func(usage.Point) float64) plotView {
	p := r.Plot
	n := len(p.All)
	step := time.Duration(p.Step * float64(time.Second))
	end := p.From.Add(time.Duration(n) * step)
	v := plotView{Title: title, Width: plotWidth, Height: chartTop, First: p.From.In(zone).Format(time.RFC3339), Last: end.In(zone).Format(time.RFC3339), Ticks: ticksOf(p.From.In(zone), end)}
	mean := func(points []usage.Point, i int) float64 { return get(points[i]) / max(1e-9, p.Watched[i]) }
	most, sum, watched := 0.0, 0.0, 0.0
	for i := range n {
		if p.Watched[i] > 0 {
			most = max(most, mean(p.All, i))
			sum, watched = sum+get(p.All[i]), watched+p.Watched[i]
		}
	}
	full := ceil(most)
	v.Full, v.Half = text(full), text(full/2)
	v.Summary = fmt.Sprintf("%s: at most %s, %s on average", title, text(round3(most)), text(round3(sum/max(1e-9, watched))))
	up, edge := make([]float64, n), make([]int, n)
	below := ""
	for layer := 0; layer <= len(p.Lines); layer++ {
		a := area{Class: noColour} // the last layer, up to the sum, is of all other lines
		if layer < len(p.Lines) {
			name, _ := nameOf(r.By, r.Lines[layer])
			s := col.style(lineID(r.By, r.Lines[layer]))
			a = area{Name: name, Class: s.Class(), Pattern: s.Pattern()}
		}
		for i := range n {
			if layer < len(p.Lines) {
				up[i] += mean(p.Lines[layer], i)
			} else {
				up[i] = max(up[i], mean(p.All, i))
			}
			edge[i] = chartTop - int(math.Round(chartTop*min(1, up[i]/full)))
		}
		a.Path = stepPath(edge, p.Watched)
		if a.Path == below || a.Path == "" {
			continue
		}
		below = a.Path
		v.Areas = append([]area{a}, v.Areas...)
	}
	v.Gaps = gapPath(p.Watched)
	return v
}

func round3(v float64) float64 {
	if v <= 0 {
		return 0
	}
	scale := math.Pow(10, 2-math.Floor(math.Log10(v)))
	return math.Round(v*scale) / scale
}

// plotX returns the left edge of a step.
func plotX(i, n int) string {
	return strconv.FormatFloat(math.Round(100*plotWidth*float64(i)/float64(n))/100, 'f', -1, 64)
}

// stepPath draws an edge as steps, and the area below it. Steps that nobody watched are left out.
func stepPath(edge []int, watched []float64) string {
	var out strings.Builder
	n := len(edge)
	for i := 0; i < n; {
		if watched[i] <= 0 || edge[i] == chartTop {
			i++
			continue
		}
		fmt.Fprintf(&out, "M%s %dV%d", plotX(i, n), chartTop, edge[i])
		for ; i < n && watched[i] > 0 && edge[i] != chartTop; i++ {
			if i+1 == n || watched[i+1] <= 0 || edge[i+1] != edge[i] {
				fmt.Fprintf(&out, "H%s", plotX(i+1, n))
				if i+1 < n && watched[i+1] > 0 && edge[i+1] != chartTop {
					fmt.Fprintf(&out, "V%d", edge[i+1])
				}
			}
		}
		fmt.Fprintf(&out, "V%dZ", chartTop)
	}
	return out.String()
}

// gapPath draws the steps that nobody watched.
func gapPath(watched []float64) string {
	var out strings.Builder
	n := len(watched)
	for i := 0; i < n; i++ {
		if watched[i] > 0 {
			continue
		}
		begin := i
		for i < n && watched[i] <= 0 {
			i++
		}
		fmt.Fprintf(&out, "M%s 0H%sV%dH%sZ", plotX(begin, n), plotX(i, n), chartTop, plotX(begin, n))
	}
	return out.String()
}

// ticksOf returns labels at round times.
func ticksOf(from, to time.Time) (out []tick) {
	span := to.Sub(from)
	day := time.Date(from.Year(), from.Month(), from.Day(), 0, 0, 0, 0, from.Location())
	layout, next := "Jan", func(t time.Time) time.Time { return t.AddDate(0, 1, 1-t.Day()) }
	days := func(n int) func(time.Time) time.Time {
		return func(t time.Time) time.Time { return t.AddDate(0, 0, n) }
	}
	every := func(d time.Duration) func(time.Time) time.Time {
		return func(t time.Time) time.Time { return t.Add(d) }
	}
	switch {
	case span <= time.Hour:
		layout, next = "15:04", every(10*time.Minute)
	case span <= 3*time.Hour:
		layout, next = "15:04", every(30*time.Minute)
	case span <= 12*time.Hour:
		layout, next = "15:04", every(2*time.Hour)
	case span <= 30*time.Hour:
		layout, next = "15:04", every(4*time.Hour)
	case span <= 4*24*time.Hour:
		layout, next = "Mon 15:04", every(12*time.Hour)
	case span <= 10*24*time.Hour:
		layout, next = "Mon 2", days(1)
	case span <= 60*24*time.Hour:
		layout, next = "2 Jan", days(7)
	}
	for t := day; t.Before(to); t = next(t) {
		if x := float64(t.Sub(from)) / float64(span); x >= 0 && x <= 0.96 {
			out = append(out, tick{strconv.FormatFloat(100*x, 'f', 2, 64) + "%", t.Format(layout)})
		}
	}
	return out
}
