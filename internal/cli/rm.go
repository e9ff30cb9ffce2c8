package cli

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"ration/internal/job"
	"ration/internal/node"
	"ration/internal/region"
	"ration/internal/termtext"
	"ration/machine"
)

// Removals is what `ration rm --json` prints.
type Removals struct {
	Removed []Removal `json:"removed"`
	Kept    []Removal `json:"kept"` // named in the arguments but not removed
}

// Removal is a job that was removed, or why it was not.
type Removal struct {
	Job    string            `json:"job,omitempty"` // empty for a region outside the folder of jobs
	Path   string            `json:"path"`
	Error  string            `json:"error,omitempty"`
	Living []machine.Process `json:"living,omitempty"` // living processes because of which the job was kept
	Left   string            `json:"left,omitempty"`   // processes that still used a removed job
}

type rmFlags struct{ stale, force bool }

func newRmCommand(a *app) *cobra.Command {
	var f rmFlags
	cmd := &cobra.Command{
		Use:        "rm JOB...",
		SuggestFor: []string{"remove", "delete", "prune", "clean"},
		Short:      "Remove jobs that have ended",
		Long: `Remove jobs that have ended: the folder of each, with its region and limits.

JOB is a name that ration ps shows, the path of a region, with a slash in it, or
for root USER/NAME, a job of another user. For a path, and for another user's
job, the region and the limits file beside it are removed, and nothing else.

A job is kept while one of its processes is alive or its command runs; ration
rm never kills a process. --force also removes a job of ration run that no
process has joined yet, although it may be about to start, and a job whose
region is damaged. And it removes a job with an operator's limits (ration
create, or ration run --keep by root) that processes still use. It names these
processes. They get no more memory, and what they hold until they end is counted
in no job.

--stale removes all of your jobs that have ended. A job that no process has
joined is kept for an hour.

Exit status: 0 if all named jobs were removed; 1 if one was kept; 3 if there is
no such job.`,
		Example:           "  ration rm train\n  ration rm --stale",
		Args:              argCount(0, -1, "jobs"),
		ValidArgsFunction: completeJobs(1 << 10),
		RunE:              func(_ *cobra.Command, args []string) error { return a.runRm(f, args) },
	}
	cmd.Flags().BoolVar(&f.stale, "stale", false, "remove all jobs that have ended")
	cmd.Flags().BoolVar(&f.force, "force", false, "also remove a job that is about to start, or that cannot be read, or, with an operator's limits, that is in use")
	return cmd
}

func (a *app) runRm(f rmFlags, names []string) error {
	switch {
	case f.stale && (f.force || len(names) > 0):
		return usageError("--stale: finds the jobs itself, and only those that are safe to remove (name none, without --force)")
	case f.stale:
		return a.removeStale()
	case len(names) == 0:
		return usageError("ration rm needs the jobs to remove (name them, or use --stale; see ration ps)")
	}
	jobs, err := lookUpJobs(names, job.FindFolder)
	if err != nil {
		return err
	}
	shown := make([]string, len(jobs))
	for i := range jobs {
		j := &jobs[i]
		shown[i] = nameOf(names[i], *j)
		if _, is := job.PolicyUser(j.Path); is && j.Name == "" {
			if !job.AllUsers() {
				return statusError{fmt.Errorf("removing %s: the machine's policy made it, and only root can remove it (ration stop ends its processes)", shown[i]), ExitFailed}
			}
			j.Name = filepath.Base(filepath.Dir(j.Path)) // a job of root's
		}
	}
	if f.force {
		return a.removeJobs(jobs, shown, job.ForceRemove)
	}
	return a.removeJobs(jobs, shown, func(j job.Job) ([]region.Process, error) { return nil, job.Remove(j, false) })
}

// removeJobs removes the jobs that it can, and reports the others. shown are their names.
func (a *app) removeJobs(jobs []job.Job, shown []string, remove func(job.Job) (left []region.Process, err error)) error {
	out := Removals{Removed: []Removal{}, Kept: []Removal{}}
	var kept []error
	for i, j := range jobs {
		left, err := remove(j)
		if err == nil {
			r := Removal{Job: shown[i], Path: j.Path}
			if len(left) > 0 {
				r.Left = job.LeftText(j, left)
			}
			out.Removed = append(out.Removed, r)
			continue
		}
		r := Removal{Job: shown[i], Path: j.Path, Error: err.Error()}
		var living *job.LivingError
		if errors.As(err, &living) {
			r.Living = livingIn(j)
		}
		out.Kept, kept = append(out.Kept, r), append(kept, err)
	}
	return a.printReport(out, len(kept) == 0, func() {
		for _, r := range out.Removed {
			a.out.printf("removed %s\n", termtext.Printable(cmp.Or(r.Job, r.Path)))
			if r.Left != "" {
				a.warn(r.Left)
			}
		}
		printError(a.err, errors.Join(kept...))
	})
}

// livingIn returns the processes of a job that are not dead.
func livingIn(j job.Job) []machine.Process {
	s := node.ReadJob(job.Job{Path: j.Path}, node.Options{ReadOnly: true}) // a job that was kept for its processes can be read
	return slices.DeleteFunc(s.Processes, func(p machine.Process) bool { return p.State == machine.Dead })
}

// removeStale removes all jobs that have ended.
func (a *app) removeStale() error {
	jobs, err := job.List()
	if err != nil {
		return statusError{err, ExitOpen}
	}
	var stale []job.Job
	var shown []string
	for _, j := range jobs { // jobs without a name are listed only because the environment names them
		if j.Name != "" && job.Ended(j, time.Now()) {
			stale, shown = append(stale, j), append(shown, nameOf(j.Name, j))
		}
	}
	if len(stale) == 0 && !a.json {
		a.out.printf("Nothing to remove: no job in %s has ended.\n", job.Folder())
		return nil
	}
	return a.removeJobs(stale, shown, func(j job.Job) ([]region.Process, error) { return nil, job.Remove(j, true) })
}
