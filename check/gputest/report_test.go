package gputest

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"ration/check/benchpage"
)

// Verdicts of checks.
const (
	pass = "pass"
	fail = "fail"
	skip = "skip" // the machine lacks something; the text says what
)

// report is the result of this run.
var report = results{began: time.Now()}

// results are checks and costs, as they are shown.
type results struct {
	began time.Time
	page  benchpage.Page
}

// add adds the result of a check.
func (r *results) add(name, verdict, text string) {
	r.page.Checks = append(r.page.Checks, benchpage.TestResult{Name: name, Verdict: verdict, Text: text})
}

// sort brings failed checks and missed targets to the front, then what was skipped or
// cannot be told.
func (r *results) sort() {
	order := func(verdict string) int {
		return slices.Index([]string{"", kept, pass, unclear, skip, missed, fail}, verdict)
	}
	slices.SortStableFunc(r.page.Checks, func(a, b benchpage.TestResult) int { return cmp.Compare(order(b.Verdict), order(a.Verdict)) })
	slices.SortStableFunc(r.page.Comparisons, func(a, b benchpage.Comparison) int {
		return cmp.Compare(order(b.Verdict), order(a.Verdict))
	})
}

// totals returns the number of checks by their result, and which costs did not keep
// their target.
func (r *results) totals() string {
	text := fmt.Sprintf("%s, %.0f s: %s", r.began.UTC().Format(time.RFC3339), time.Since(r.began).Seconds(), r.page.Counted())
	for _, verdict := range []string{missed, unclear} {
		var names []string
		for _, c := range r.page.Comparisons {
			if c.Verdict == verdict {
				names = append(names, c.Name)
			}
		}
		if len(names) > 0 {
			text += fmt.Sprintf(" Target %s: %s.", verdict, strings.Join(names, "; "))
		}
	}
	return text
}

// write prints the results as tables in Markdown if people watch, and writes them to a file
// as a page with plots, if it is named.
func (r *results) write(html string) error {
	r.sort()
	r.page.Machine = opened.facts()
	if testing.Verbose() {
		r.print(os.Stdout)
	}
	if html == "" {
		return nil
	}
	f, err := os.Create(html)
	if err != nil {
		return fmt.Errorf("writing the page: %w", err)
	}
	defer f.Close()
	r.page.Title, r.page.Command = "ration on "+opened.driver.Devices[opened.device].Name, "make gpu-test"
	r.page.Date = r.began.UTC().Format(time.RFC3339)
	r.page.Lead = "ration gives every CUDA program its ration of GPU memory. This page shows what that costs on a real GPU, beside the same programs without it, and " +
		"which of its promises were checked there."
	if testing.Short() {
		r.page.Warning = "This was a smoke run (-test.short): its values mean nothing."
	}
	return benchpage.Write(f, r.page)
}

// print writes the results as tables in Markdown.
func (r *results) print(w io.Writer) {
	fmt.Fprintf(w, "\n| check | | result |\n|---|---|---|\n")
	for _, c := range r.page.Checks {
		fmt.Fprintf(w, "| %-34s | %s | %s |\n", c.Name, c.Verdict, strings.ReplaceAll(c.Text, "|", "\\|"))
	}
	if len(r.page.Comparisons) > 0 {
		fmt.Fprintf(w, "\n| %-41s | native | in a job | more | spread of that | two natives differ by | target |\n|---|---|---|---|---|---|---|\n", "what")
	}
	for _, c := range r.page.Comparisons {
		verdict := c.Verdict
		if verdict == missed {
			verdict = "**missed**"
		}
		fmt.Fprintf(w, "| %-41s | %9s | %9s | %9s | %19s | %7s | %s |\n",
			c.Name, c.NativeText, c.JobText, c.More, c.MoreSpread, c.Noise, strings.TrimSpace(c.Target+" "+verdict))
	}
	fmt.Fprintln(w)
	for _, fact := range r.page.Machine {
		fmt.Fprintf(w, "%s: %s\n", fact.Name, fact.Text)
	}
	fmt.Fprintln(w, r.totals())
}
