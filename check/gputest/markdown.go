package gputest

import (
	"fmt"
	"io"
	"strings"
)

// Markdown writes a report as tables: missed targets first, then those that cannot be
// told.
func (r Report) Markdown(w io.Writer) {
	fmt.Fprintf(w, "%s\n\n%s, %.0f s.\n", strings.ReplaceAll(r.Machine.String(), "\n", "; "), r.Date, r.Seconds)
	r.costs(w)
	if len(r.Checks) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%d checks passed, %d failed, %d were skipped.\n\n| check | | result |\n|---|---|---|\n",
		r.count(Pass), r.count(Fail), r.count(Skip))
	for _, verdict := range []string{Fail, Skip, Pass} {
		for _, o := range r.Checks {
			if o.Verdict == verdict {
				fmt.Fprintf(w, "| %s | %s | %s |\n", o.Check, o.Verdict, strings.ReplaceAll(o.Summary, "|", "\\|"))
			}
		}
	}
}

func (r Report) costs(w io.Writer) {
	if len(r.Measures) == 0 {
		return
	}
	fmt.Fprint(w, "\n| what | native | under ration | more | spread of that | two natives differ by | target |\n|---|---|---|---|---|---|---|\n")
	for _, verdict := range []string{Missed, Unclear, Kept, ""} {
		for _, row := range r.Measures {
			if row.verdict() != verdict {
				continue
			}
			t := row.text()
			target := t.target
			if verdict == Missed {
				target = "**" + target + "**"
			}
			fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s | %s |\n", row.Name, t.native, t.ration, t.more, t.spread, t.noise, target)
		}
	}
}
