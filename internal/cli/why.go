package cli

import (
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/limit"
)

// Why is what `ration why --json` prints.
type Why struct {
	Refusals []WhyRefusal `json:"refusals"` // the newest first
}

// WhyRefusal is a refusal with the names of its job and processes. Sizes are bytes.
type WhyRefusal struct {
	Job  string `json:"job,omitempty"` // empty for a region outside the folder of jobs
	Path string `json:"path"`
	job.Refusal
	Name string      `json:"name"` // of the process that was refused; empty where it is gone
	Free uint64      `json:"free"`
	Top  []WhyHolder `json:"top"` // the processes that held most, the most first
	Text string      `json:"text"`
}

// WhyHolder is a process that held much at that moment.
type WhyHolder struct {
	job.Holder
	Name string `json:"name"` // empty where the process is gone
}

// blamed is a refusal and whose it is.
type blamed struct {
	job.RepeatedRefusal
	of *job.Status
}

func (a *app) why() *cobra.Command {
	count := 20
	cmd := &cobra.Command{
		Use:   "why [JOB]",
		Short: "Explain the latest refusals",
		Long: `Explain the latest requests that were refused, the newest first: who asked for
how much, what was free of the limit, and who held the rest at that moment.

JOB is a name that ration ps shows, or the path of a region, with a slash in it;
without it, refusals of all jobs are shown. A region keeps its latest 256.
Processes that are gone are shown by their PID. A request that was made again
and again is shown once, with how often.

Exit status: 0, also when nothing was refused; 3 if there is no such job, or its
region could not be read.`,
		Example:           "  ration why\n  ration why train -n 3\n  ration why train --json",
		Args:              takes(0, 1, "one job"),
		ValidArgsFunction: completeJobs(1),
		RunE: does(func(_ *cobra.Command, args []string) error {
			if count < 1 {
				return usage("-n %d: not a number of refusals (use 1 or more)", count)
			}
			all, err := a.looked(args)
			if err != nil {
				return err
			}
			if a.json {
				return a.out.print(whyJSON(all, count))
			}
			return a.explain(all, count)
		}),
	}
	cmd.Flags().IntVarP(&count, "count", "n", 20, "how many to show, at most")
	return cmd
}

// looked looks at the named jobs, or at all of them, of which those that cannot
// be read are only told about.
func (a *app) looked(names []string) (out []job.Status, err error) {
	var jobs []job.Job
	for _, name := range names {
		j, err := job.Find(name)
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, j)
	}
	if len(names) == 0 {
		if jobs, err = job.List(); err != nil {
			return nil, statusError{err, ExitOpen}
		}
	}
	for _, j := range jobs {
		s := job.Read(j, job.ReadOptions{ReadOnly: true})
		switch {
		case s.Err() == nil:
			out = append(out, s)
		case len(names) > 0:
			return nil, statusError{s.Err(), ExitOpen}
		default:
			complain(a.err, s.Err())
		}
	}
	return out, nil
}

// explain tells the latest in sentences.
func (a *app) explain(all []job.Status, count int) error {
	var told []blamed
	for i := range all {
		for _, f := range job.GroupRefusals(all[i].Refusals) {
			told = append(told, blamed{f, &all[i]})
		}
	}
	slices.SortStableFunc(told, func(x, y blamed) int { return compareNewest(x.Time, y.Time) })
	if len(told) == 0 {
		a.out.printf("No request was refused.\n")
		return nil
	}
	now := time.Now()
	for _, f := range told[:min(count, len(told))] {
		text := fmt.Sprintf("%s, device %d: %s", f.of.Title(), f.Device, f.Sentence(f.of.Processes))
		if f.Times > 1 {
			text += fmt.Sprintf("; %s times in %s", humanfmt.Count(f.Times), humanfmt.Duration(time.Duration(f.Time-f.First)))
		}
		at := clock(time.Unix(0, f.Time), now)
		a.out.printf("%s  %s.\n", a.out.style(dim, at), a.out.wrap(printable(text), len(at)+2))
	}
	if f := told[0]; a.out.tty && f.Held+f.Asked <= uint64(limit.TiB) {
		need := (f.Held + f.Asked + uint64(limit.MiB) - 1) / uint64(limit.MiB) * uint64(limit.MiB)
		a.out.printf("\n%s\n", a.out.style(dim, a.out.wrap(fmt.Sprintf("The newest would have fitted under: ration limit %s %s --device %d",
			f.of.Title(), limit.Size(need).Exact(), f.Device), 0)))
	}
	return nil
}

// clock is a time of day, with the day where it was another.
func clock(t, now time.Time) string {
	if t.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return t.Format(time.TimeOnly)
	}
	return t.Format(time.DateTime)
}

func compareNewest(x, y int64) int {
	switch {
	case x > y:
		return -1
	case x < y:
		return 1
	}
	return 0
}

func whyJSON(all []job.Status, count int) Why {
	out := Why{Refusals: []WhyRefusal{}}
	for _, s := range all {
		for _, f := range s.Refusals {
			r := WhyRefusal{s.Job, s.Path, f, f.RequesterName(s.Processes), f.Free(), []WhyHolder{}, f.Sentence(s.Processes)}
			for i, h := range f.Top {
				r.Top = append(r.Top, WhyHolder{h, f.HolderName(i, s.Processes)})
			}
			out.Refusals = append(out.Refusals, r)
		}
	}
	slices.SortStableFunc(out.Refusals, func(x, y WhyRefusal) int { return compareNewest(x.Time, y.Time) })
	out.Refusals = out.Refusals[:min(count, len(out.Refusals))]
	return out
}
