package gputest

import (
	"fmt"

	"ration/check/benchpage"
	"ration/internal/humanfmt"
)

// Page returns the report as a page: missed targets first, then those that cannot be told,
// and failed checks first.
func (r Report) Page() benchpage.Page {
	p := benchpage.Page{
		Title:   "ration on " + r.Machine.GPU,
		Date:    r.Date,
		Command: "make gpu-test",
		Machine: append([]benchpage.Fact{
			{Name: "GPU", Text: fmt.Sprintf("%s, %s, driver %s, CUDA %s", r.Machine.GPU, humanfmt.Bytes(r.Machine.Memory), r.Machine.Driver, r.Machine.CUDA)},
			{Name: "ration", Text: r.Machine.Ration},
		}, r.Machine.Facts()...),
		Lead: "ration gives every CUDA program its ration of GPU memory. This page shows what that costs on a real GPU, beside the same programs without it, and " +
			"which of its promises were checked there.",
	}
	for _, name := range sortedKeys(r.Machine.Frameworks) {
		p.Machine = append(p.Machine, benchpage.Fact{Name: name, Text: r.Machine.Frameworks[name]})
	}
	for _, verdict := range []string{Missed, Unclear, Kept, ""} {
		for _, row := range r.Measures {
			if row.verdict() == verdict {
				p.Comparisons = append(p.Comparisons, row.shown())
			}
		}
	}
	for _, verdict := range []string{Fail, Skip, Pass} {
		for _, o := range r.Checks {
			if o.Verdict == verdict {
				p.Checks = append(p.Checks, benchpage.Check{Name: o.Check, Verdict: o.Verdict, Text: o.Summary})
			}
		}
	}
	return p
}

// shown is a row of the page. Both native programs are one there.
func (r Row) shown() benchpage.Comparison {
	t := r.text()
	c := benchpage.Comparison{
		Name: r.Name, NativeText: t.native, JobText: t.ration, More: t.more, MoreSpread: t.spread, Noise: t.noise,
		Target: r.Target, Verdict: r.Verdict, WithoutValue: r.Why,
		Native: benchpage.Spread{
			Low: min(r.Native.Low, r.Control.Low), Median: (r.Native.Median + r.Control.Median) / 2, High: max(r.Native.High, r.Control.High),
		},
	}
	if t.ration != "" {
		c.Job = benchpage.Spread{Low: r.Ration.Low, Median: r.Ration.Median, High: r.Ration.High}
	}
	return c
}
