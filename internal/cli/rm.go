package cli

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"ration/internal/job"
)

// Removals is what `ration rm --json` prints.
type Removals struct {
	Removed []Removal `json:"removed"`
	Kept    []Removal `json:"kept"` // that were named, and could not be removed
}

// Removal is a job that was removed, or why it was not.
type Removal struct {
	Job    string        `json:"job,omitempty"` // empty for a region outside the folder of jobs
	Path   string        `json:"path"`
	Error  string        `json:"error,omitempty"`
	Living []job.Process `json:"living,omitempty"` // who keeps it from being removed
}

func (a *app) rm() *cobra.Command {
	var stale, force bool
	cmd := &cobra.Command{
		Use:   "rm JOB...",
		Short: "Remove jobs that have ended",
		Long: `Remove jobs that have ended: the folder of each, with its region and limits.

JOB is a name that ration ps shows, or the path of a region, with a slash in it:
then the region and the limits beside it are removed, and nothing else.

A job with living processes, or in which a command of ration run still runs, is
not removed, and nothing is ever killed: they would go on under a limit of their
own, beside that of whoever comes next. A job that nobody has joined yet may be
about to begin, and one whose region cannot be read may be in use by another
version of ration; --force removes those two.

--stale removes all of this user's jobs that have ended, and leaves alone those
that nobody has joined within their first hour.

Exit status: 0 if all that were named are gone; 1 if one was kept; 3 if there is
no such job.`,
		Example:           "  ration rm train\n  ration rm --stale",
		Args:              takes(0, -1, "jobs"),
		ValidArgsFunction: completeJobs(1 << 10),
		RunE: does(func(_ *cobra.Command, args []string) error {
			switch {
			case stale && (force || len(args) > 0):
				return usage("--stale: finds the jobs itself, and only those that are safe to remove (name none, without --force)")
			case stale:
				return a.removeStale()
			case len(args) == 0:
				return usage("ration rm needs the jobs to remove (name them, or use --stale; see ration ps)")
			}
			var jobs []job.Job
			for _, name := range args {
				j, err := job.FindFolder(name)
				if err != nil {
					return err
				}
				jobs = append(jobs, j)
			}
			return a.remove(jobs, force)
		}),
	}
	cmd.Flags().BoolVar(&stale, "stale", false, "remove all jobs that have ended")
	cmd.Flags().BoolVar(&force, "force", false, "also one that nobody has joined, or that cannot be read; never one with living processes")
	return cmd
}

// remove removes what it can, and says what it could not.
func (a *app) remove(jobs []job.Job, force bool) error {
	out := Removals{Removed: []Removal{}, Kept: []Removal{}}
	var kept []error
	for _, j := range jobs {
		err := job.Remove(j, force)
		if err == nil {
			out.Removed = append(out.Removed, Removal{Job: j.Name, Path: j.Path})
			continue
		}
		r := Removal{Job: j.Name, Path: j.Path, Error: err.Error()}
		var living *job.LivingError
		if errors.As(err, &living) {
			r.Living = living.Living
		}
		out.Kept, kept = append(out.Kept, r), append(kept, err)
	}
	if a.json {
		if err := a.out.print(out); err != nil {
			return err
		}
		if len(kept) > 0 {
			return failed()
		}
		return nil
	}
	for _, r := range out.Removed {
		a.out.printf("removed %s\n", job.Job{Name: r.Job, Path: r.Path}.Title())
	}
	return errors.Join(kept...)
}

// removeStale removes all that have ended. One that began again meanwhile is
// kept, which is what was asked for.
func (a *app) removeStale() error {
	jobs, err := job.List()
	if err != nil {
		return statusError{err, ExitOpen}
	}
	var stale []job.Job
	for _, j := range jobs {
		if j.Name == "" {
			continue // only named by the environment
		}
		if s := job.Read(j, job.ReadOptions{}); s.Stale(time.Now()) {
			stale = append(stale, j)
		}
	}
	if len(stale) == 0 && !a.json {
		a.out.printf("Nothing to remove: no job in %s has ended.\n", job.Folder())
		return nil
	}
	return a.remove(stale, true)
}
