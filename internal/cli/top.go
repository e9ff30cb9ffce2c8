package cli

import (
	"os"
	"time"

	"github.com/spf13/cobra"

	"ration/internal/job"
	"ration/internal/reap"
	"ration/internal/tui"
	"ration/internal/utilization"
)

type topFlags struct {
	region   string // path; empty: all jobs
	readOnly bool
	interval time.Duration
}

func newTopCommand(a *app) *cobra.Command {
	var f topFlags
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show jobs and processes as they change",
		Long: `Show jobs on the terminal as they change: a bar for each device of each job with
its limit and its peak, the processes of one job or of all, and refusals and
deaths as they happen. The last line shows the keys, and ? explains them.

COMPUTE is a job's share of a device's time, and its cap. TIME is what a process
had of it lately. It is measured in a job with a cap. Otherwise it is the
driver's rough average over five seconds or more, marked with ~, and may be
wrong by several points.

It needs a terminal that can move its cursor. 80 columns by 24 lines show
everything; a smaller one shows less. Without a terminal use ration ps --watch.

NO_COLOR=1 turns colours off. Where the locale (LC_ALL, LC_CTYPE, LANG) is not
UTF-8, and on the Linux console, frames are drawn in ASCII.

What dead processes still hold is returned to the job, if you may write its
region. With --read-only nothing is changed.

Exit status: 0; 2 if there is no terminal; 3 if the named region could not be
read.`,
		Example: "  ration top\n  ration top --interval 250ms\n  ration top --region /run/ration/train/region",
		Args:    noArgs,
		RunE:    withStatus(func(cmd *cobra.Command, _ []string) error { return a.runTop(cmd, f) }),
	}
	cmd.Flags().StringVar(&f.region, "region", "", "show only the job with the region at this `path`")
	cmd.Flags().DurationVarP(&f.interval, "interval", "i", time.Second, "how often to read the jobs")
	cmd.Flags().BoolVar(&f.readOnly, "read-only", false, "change nothing, not even what dead processes hold")
	return cmd
}

func (a *app) runTop(cmd *cobra.Command, f topFlags) error {
	switch {
	case a.json:
		return usageError("ration top draws on a terminal (for JSON use ration ps --json, or with --watch)")
	case os.Getenv("TERM") == "dumb":
		return usageError("the terminal cannot move its cursor: TERM is dumb (use ration ps --watch)")
	case !a.out.tty:
		return usageError("standard output is not a terminal (use ration ps, or ration ps --watch)")
	case f.interval < minInterval:
		return usageError("--interval %v: too often (use %v or more)", f.interval, minInterval)
	}
	opts := reap.Options{ReadOnly: f.readOnly}
	source := tui.AllJobs(opts)
	if cmd.Flags().Changed("region") {
		j := job.Job{Path: f.region}
		if s := reap.ReadJob(j, opts); s.Err() != nil {
			return statusError{s.Err(), ExitOpen}
		}
		source = tui.OneJob(j, opts)
	}
	meter := utilization.New()
	defer meter.Close()
	return tui.Run(tui.Measured(source, meter), f.interval, tui.Terminal{In: os.Stdin, Out: a.out.Writer, Environ: os.Environ()})
}
