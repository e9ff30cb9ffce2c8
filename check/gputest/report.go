package gputest

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"ration/internal/humanfmt"
)

// Report is the result of a run.
type Report struct {
	Machine  About     `json:"machine"`
	Date     string    `json:"date"` // RFC 3339
	Seconds  float64   `json:"seconds"`
	Checks   []Outcome `json:"checks"`
	Measures []Row     `json:"measures"`
}

// Passed returns whether no check failed. A missed target is not a failure: it depends
// on the machine.
func (r Report) Passed() bool { return r.count(Fail) == 0 }

func (r Report) count(verdict string) (n int) {
	for _, o := range r.Checks {
		if o.Verdict == verdict {
			n++
		}
	}
	return n
}

// Print writes the machine and the totals. The results themselves have been written
// by Table.
func (r Report) Print(w io.Writer) {
	fmt.Fprintf(w, "\n%s\n%s, %.0f s: %d checks passed, %d failed, %d skipped",
		r.Machine, r.Date, r.Seconds, r.count(Pass), r.count(Fail), r.count(Skip))
	if len(r.Measures) > 0 {
		fmt.Fprintf(w, "; %d costs", len(r.Measures))
		for _, some := range []struct{ text, verdict string }{{"missed their target or gave no value", Missed}, {"cannot be told", Unclear}} {
			if names := namesOf(r.Measures, some.verdict); len(names) > 0 {
				fmt.Fprintf(w, "; %s: %s", some.text, strings.Join(names, ", "))
			}
		}
	}
	fmt.Fprintln(w)
}

// String describes a machine in two lines.
func (a About) String() string {
	var frameworks []string
	for _, name := range sortedKeys(a.Frameworks) {
		frameworks = append(frameworks, name+" "+a.Frameworks[name])
	}
	if len(frameworks) == 0 {
		frameworks = []string{"no frameworks"}
	}
	return fmt.Sprintf("device %d, %s %s, driver %s, CUDA %s, %s\n%d × %s, %s, %s", a.Device, a.GPU, humanfmt.Bytes(a.Memory), a.Driver, a.CUDA,
		strings.Join(frameworks, ", "), a.Cores, a.CPU, a.Kernel, a.Ration)
}

// Table writes the results of a run as they come, a line each.
type Table struct {
	To       io.Writer
	Progress io.Writer // a terminal, which shows what is running; may be nil
	measure  string
}

// Begin shows what is running.
func (t *Table) Begin(title string) {
	if t.Progress != nil {
		fmt.Fprintf(t.Progress, "\r\033[K%s ...", title)
	}
}

func (t *Table) clear() {
	if t.Progress != nil {
		fmt.Fprint(t.Progress, "\r\033[K")
	}
}

// Checked writes the result of a check.
func (t *Table) Checked(o Outcome) {
	t.clear()
	fmt.Fprintf(t.To, "%-4s  %-29s %5.1f s  %s\n", o.Verdict, o.Check, o.Seconds, o.Summary)
	for line := range strings.Lines(o.Logs) {
		fmt.Fprintf(t.To, "      | %s\n", strings.TrimRight(line, "\n"))
	}
}

// Measured writes a cost.
func (t *Table) Measured(r Row) {
	t.clear()
	if t.measure == "" {
		fmt.Fprintf(t.To, "\n%-41s %9s %9s %9s %19s %7s  %s\n", "", "native", "ration", "more", "spread of that", "noise", "target")
	}
	t.measure = r.Measure
	if r.Why != "" {
		fmt.Fprintf(t.To, "%-41s %s\n", r.Name, r.Why)
		return
	}
	c := r.text()
	fmt.Fprintf(t.To, "%-41s %9s %9s %9s %19s %7s  %s\n", r.Name, c.native, c.ration, c.more, c.spread, c.noise, c.target)
}

// cells are the columns of a row, as text.
type cells struct{ native, ration, more, spread, noise, target string }

func (r Row) text() cells {
	if r.Why != "" {
		return cells{target: r.Why}
	}
	amount := humanfmt.Nanoseconds
	switch r.Unit {
	case kibibytes:
		amount = func(v float64) string { return humanfmt.Bytes(uint64(v * 1024)) }
	case systemCalls:
		amount = func(v float64) string { return fmt.Sprintf("%.2f", v) }
	}
	signed := func(v float64) string {
		if v < 0 {
			return "-" + amount(-v)
		}
		return "+" + amount(v)
	}
	native := (r.Native.Median + r.Control.Median) / 2
	c := cells{native: amount(native), target: strings.TrimSpace(r.Target + " " + r.Verdict)}
	if native > 0 {
		c.noise = fmt.Sprintf("%.1f %%", 100*r.Noise)
	}
	if r.Ration == (Quantiles{}) && r.Unit != systemCalls {
		return c // native only; but a step may well make no system call
	}
	c.ration, c.more, c.spread = amount(r.Ration.Median), signed(r.More.Median), signed(r.More.Low)+" … "+signed(r.More.High)
	if native > 0 {
		c.more = fmt.Sprintf("%+.2f %%", 100*(r.Ratio-1))
	}
	return c
}

// namesOf returns the names of the rows with a verdict.
func namesOf(rows []Row, verdict string) (names []string) {
	for _, r := range rows {
		if r.verdict() == verdict {
			names = append(names, r.Name)
		}
	}
	slices.Sort(names)
	return names
}

// verdict returns the verdict of a row; a row without values has missed its target.
func (r Row) verdict() string {
	if r.Why != "" {
		return Missed
	}
	return r.Verdict
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
