// Package benchpage writes benchmark results as one HTML page, with its plots as SVG, light or dark
// like the reader's system. It needs no script and no other file, so it can be sent to a colleague.
package benchpage

import (
	"embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"
	"sync"

	"ration/internal/humanfmt"
)

// Page is the content of the page.
type Page struct {
	Title       string
	Warning     string // shown before everything else
	Lead        string // introduction, in a sentence or two
	Date        string
	Command     string // command that makes such a page
	Machine     []Fact
	Comparisons []Comparison // native against in a job
	Groups      []Group
	Checks      []TestResult
}

// Fact is something about the machine.
type Fact struct{ Name, Text string }

// Spread is a median with the 10th and 90th percentile, or with the smallest and largest value.
type Spread struct {
	Low    float64 `json:"low"`
	Median float64 `json:"median"`
	High   float64 `json:"high"`
}

// Comparison compares a cost without ration and with it. The texts are shown unchanged.
type Comparison struct {
	Name         string
	Native       Spread
	Job          Spread // zero if nothing was measured in a job
	NativeText   string
	JobText      string
	More         string // the difference in a job
	MoreSpread   string
	Noise        string // the difference of two native programs
	Target       string
	Verdict      string
	WithoutValue string // why there are no values
}

// Group is values of one kind.
type Group struct {
	Name, About string
	Values      []Value
	Notes       []string
}

// Value is a measured value. It is plotted if it is a time.
type Value struct {
	Name, Text, Spread string
	Nanoseconds        Spread // zero: not a time
	Target, Verdict    string
	Note               string
}

// TestResult is a test and its result.
type TestResult struct{ Name, Verdict, Text string }

//go:embed page.html
var files embed.FS

var page = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("page.html").Funcs(template.FuncMap{
		"pair": pairPlot, "scale": newScale, "class": verdictClass,
	}).ParseFS(files, "page.html"))
})

// Write writes a page.
func Write(w io.Writer, p Page) error {
	if err := page().Execute(w, p); err != nil {
		return fmt.Errorf("writing the page: %w", err)
	}
	return nil
}

// verdictClass returns the CSS class of a verdict.
func verdictClass(verdict string) string {
	switch strings.ToLower(verdict) {
	case "ok", "kept", "pass":
		return "good"
	case "over", "missed", "fail":
		return "bad"
	}
	return "unclear"
}

// Counted returns how many checks have each verdict, in words.
func (p Page) Counted() string {
	count := map[string]int{}
	for _, c := range p.Checks {
		count[c.Verdict]++
	}
	return fmt.Sprintf("%d passed, %d failed, %d were skipped.", count["pass"], count["fail"], count["skip"])
}

// Width of a plot, in the units of its drawing.
const plotWidth = 240

// mark is a spread in a plot: a line from low to high, and a dot at the median.
type mark struct{ Low, Dot, High string }

func at(x float64) string { return fmt.Sprintf("%.1f", x) }

// pair is the plot of a comparison: two marks on one scale that begins at 0.
type pair struct {
	Native, Job mark
	HasJob      bool
}

func pairPlot(c Comparison) pair {
	top := max(c.Native.High, c.Job.High, c.Native.Median, c.Job.Median)
	if top <= 0 {
		top = 1
	}
	draw := func(s Spread) mark {
		x := func(v float64) string { return at(4 + (plotWidth-8)*max(v, 0)/top) }
		return mark{x(s.Low), x(s.Median), x(s.High)}
	}
	return pair{draw(c.Native), draw(c.Job), c.Job != Spread{}}
}

// scale is the axis of a group: logarithmic, over whole decades.
type scale struct {
	low, high int // exponents of ten
	Ticks     []tick
}

// tick is a decade. Text is empty where there is no room for it.
type tick struct{ At, Text string }

// maxTickTexts is how many texts there is room for.
const maxTickTexts = 6

// newScale returns the axis for a group, or nil if no value is a time.
func newScale(g Group) *scale {
	low, high := math.Inf(1), 0.0
	for _, v := range g.Values {
		if s := v.Nanoseconds; s.Median > 0 {
			low, high = min(low, s.Median, positive(s.Low, s.Median)), max(high, s.Median, s.High)
		}
	}
	if high == 0 {
		return nil
	}
	s := &scale{low: int(math.Floor(math.Log10(low))), high: int(math.Ceil(math.Log10(high)))}
	s.high = max(s.high, s.low+1)
	every := (s.high - s.low + maxTickTexts - 2) / (maxTickTexts - 1)
	for e := s.low; e <= s.high; e++ {
		t := tick{At: at(s.x(math.Pow10(e)))}
		if (e-s.low)%every == 0 {
			number, unit, _ := strings.Cut(humanfmt.Nanoseconds(math.Pow10(e)), " ")
			if whole, fraction, ok := strings.Cut(number, "."); ok && strings.Trim(fraction, "0") == "" {
				number = whole
			}
			t.Text = number + " " + unit
		}
		s.Ticks = append(s.Ticks, t)
	}
	return s
}

func positive(v, otherwise float64) float64 {
	if v > 0 {
		return v
	}
	return otherwise
}

func (s *scale) x(v float64) float64 {
	return 4 + (plotWidth-8)*(math.Log10(v)-float64(s.low))/float64(s.high-s.low)
}

// Mark places a value on the axis; nil if it is not a time.
func (s *scale) Mark(v Value) *mark {
	n := v.Nanoseconds
	if n.Median <= 0 {
		return nil
	}
	return &mark{at(s.x(positive(n.Low, n.Median))), at(s.x(n.Median)), at(s.x(max(n.High, n.Median)))}
}
