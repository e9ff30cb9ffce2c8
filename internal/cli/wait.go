package cli

import (
	"time"

	"github.com/spf13/cobra"

	"ration/internal/job"
	"ration/machine"
)

// Waited is what `ration wait --json` prints.
type Waited struct {
	Job   string        `json:"job,omitempty"` // empty for a region outside the folder of jobs
	Path  string        `json:"path"`
	Exit  *machine.Exit `json:"exit,omitempty"` // nil if no launcher waited for the command
	Ended time.Time     `json:"ended_at,omitzero"`
}

func newWaitCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "wait JOB",
		Short: "Wait until a job has ended",
		Long: `Wait until a job has ended: no process of its command runs, and none that has
joined it lives. JOB is a name that ration ps shows, the path of a region, with
a slash in it, or for root USER/NAME, a job of another user.

If the launcher waited for the command (ration run --summary), it prints the
exit status of the job's command and ends with the same. Otherwise it prints
nothing and ends with 0. This works even if the job is removed meanwhile. A
later job of the same name is another job. For a job of ration create it
returns when no process is in it.

Exit status: that of the job's command, 128 and the signal's number if a signal
ended it; 0 where that is not known; 3 if there is no such job.`,
		Example:           "  ration wait train\n  ration wait train && ration run --mem 10g -- python evaluate.py",
		Args:              argCount(1, 1, "one job"),
		ValidArgsFunction: completeJobs(1),
		RunE:              func(_ *cobra.Command, args []string) error { return a.runWait(args[0]) },
	}
}

func (a *app) runWait(name string) error {
	j, err := lookUpJob(name, job.FindFolder)
	if err != nil {
		return err
	}
	end, err := job.Wait(j)
	if err != nil {
		return err
	}
	out := Waited{Job: j.Name, Path: j.Path}
	if end != nil {
		out.Exit, out.Ended = &machine.Exit{Status: end.Status, Signal: end.Signal}, time.Unix(0, end.Ended).UTC()
	}
	err = a.print(out, func() {
		if end != nil {
			a.out.printf("%d\n", end.Status)
		}
	})
	if err == nil && end != nil && end.Status != 0 {
		err = statusError{errReported, end.Status}
	}
	return err
}
