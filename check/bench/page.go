package bench

import (
	"fmt"
	"math"
	"strings"

	"ration/check/benchpage"
	"ration/internal/humanfmt"
)

// Page returns the report as a page.
func (r Measurement) Page(version string) benchpage.Page {
	p := benchpage.Page{
		Title:   "What ration costs on this machine",
		Date:    r.Date,
		Command: r.Command,
		Machine: r.Machine.Facts(),
		Lead: "ration gives every CUDA program its ration of GPU memory. This page compares programs without ration with the same programs in a job, and shows what " +
			"its parts take. Nothing here is a simulation: every value was measured with real processes.",
	}
	p.Machine = append(p.Machine, benchpage.Fact{Name: "ration", Text: version})
	if r.Driver != "" {
		p.Machine = append(p.Machine, benchpage.Fact{Name: "GPU", Text: r.Driver})
	}
	if r.Driver == StandIn {
		p.Lead += " There was no GPU driver: a stand-in took its place, whose calls do far less than a real driver's. So differences are in time, and not in per cent."
	}
	if strings.HasSuffix(r.Command, "--quick") {
		p.Warning = "This was a smoke run of a few seconds (--quick): its values mean nothing."
	}
	for _, c := range r.Comparisons {
		p.Comparisons = append(p.Comparisons, c.shown(r.Driver != StandIn))
	}
	for _, result := range r.Results {
		g := benchpage.Group{Name: result.Bench, About: sentence(result.About), Notes: result.Notes}
		for _, row := range result.Rows {
			v := row.shown()
			if p.Warning != "" {
				v.Verdict = ""
			}
			g.Values = append(g.Values, v)
		}
		p.Groups = append(p.Groups, g)
	}
	return p
}

// Facts describes the machine.
func (m Host) Facts() []benchpage.Fact {
	return []benchpage.Fact{
		{Name: "CPU", Text: fmt.Sprintf("%d × %s (%s)", m.Cores, m.CPU, m.Arch)},
		{Name: "kernel", Text: m.Kernel},
		{Name: "regions are on", Text: m.FileSystem},
		{Name: "load before", Text: m.Load},
	}
}

func sentence(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

func (c Comparison) shown(perCent bool) benchpage.Comparison {
	more := signed(c.More.Median)
	if perCent && c.Native.Median > 0 {
		more += fmt.Sprintf(" (%+.1f %%)", 100*c.More.Median/c.Native.Median)
	}
	verdict := ""
	if math.Abs(c.More.Median) <= c.Noise*c.Native.Median {
		verdict = "cannot tell"
	}
	return benchpage.Comparison{
		Verdict: verdict,
		Name:    c.Name, Native: c.Native, Job: c.Job,
		NativeText: humanfmt.Nanoseconds(c.Native.Median), JobText: humanfmt.Nanoseconds(c.Job.Median),
		More: more, MoreSpread: signed(c.More.Low) + " … " + signed(c.More.High), Noise: fmt.Sprintf("%.1f %%", 100*c.Noise),
	}
}

func signed(ns float64) string {
	if ns < 0 {
		return "-" + humanfmt.Nanoseconds(-ns)
	}
	return "+" + humanfmt.Nanoseconds(ns)
}

func (r Row) shown() benchpage.Value {
	name := strings.TrimSpace(r.Name)
	if r.Language != "" {
		name += " (" + string(r.Language) + ")"
	}
	v := benchpage.Value{Name: name, Text: r.Text(), Target: r.Target, Verdict: r.Verdict, Note: r.Note}
	if r.Low != r.High {
		v.Spread = r.SpreadText()
	}
	if r.Unit == Nanoseconds {
		v.Nanoseconds = benchpage.Spread{Low: r.Low, Median: r.Value, High: r.High}
	}
	return v
}

// Text is the value with its unit.
func (r Row) Text() string {
	switch r.Unit {
	case Percent:
		return humanfmt.Percent(r.Value)
	case Count:
		return humanfmt.Count(int64(r.Value))
	}
	return humanfmt.Nanoseconds(r.Value)
}

// SpreadText is the spread with its unit.
func (r Row) SpreadText() string {
	if r.Unit == Percent {
		return humanfmt.Three(r.Low) + "–" + humanfmt.Percent(r.High)
	}
	return humanfmt.Range(r.Low, r.High)
}
