package cli

import (
	"os"
	"time"

	"github.com/spf13/cobra"

	"ration/internal/job"
	"ration/internal/tui"
)

func (a *app) top() *cobra.Command {
	var path string
	var only bool
	every := time.Second
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch who holds what",
		Long: `Watch jobs on the terminal: a bar for each device of each job with its limit and
its peak, the processes of one job or of all, and refusals and deaths as they
happen. The last line shows the keys; ? explains them.

It needs a terminal that can move its cursor, 80 columns by 24 lines or more for
everything; with less it shows less. Without one there is ration ps --watch.

NO_COLOR=1 is without colours. Where the locale (LC_ALL, LC_CTYPE, LANG) is not
UTF-8, and on the Linux console, frames are drawn in ASCII.

Memory of processes that died without returning it is given back, where you may
write the region. With --read-only nothing is touched.

Exit status: 0; 2 if there is no terminal; 3 if the named region could not be
read.`,
		Example: "  ration top\n  ration top --interval 250ms\n  ration top --region /run/ration/train/region",
		Args:    noArgs,
		RunE: does(func(cmd *cobra.Command, _ []string) error {
			switch {
			case a.json:
				return usage("ration top draws on a terminal (for JSON use ration ps --json, or with --watch)")
			case os.Getenv("TERM") == "dumb":
				return usage("the terminal cannot move its cursor: TERM is dumb (use ration ps --watch)")
			case !a.out.tty:
				return usage("standard output is not a terminal (use ration ps, or ration ps --watch)")
			case every < leastInterval:
				return usage("--interval %v: too often (use %v or more)", every, leastInterval)
			}
			source := tui.Jobs(only)
			if cmd.Flags().Changed("region") {
				j := job.Job{Path: path}
				if s := job.Read(j, job.ReadOptions{ReadOnly: only}); s.Err() != nil {
					return statusError{s.Err(), ExitOpen}
				}
				source = tui.One(j, only)
			}
			return tui.Run(source, every, tui.Terminal{In: os.Stdin, Out: a.out.Writer, Environ: os.Environ()})
		}),
	}
	cmd.Flags().StringVar(&path, "region", "", "show only the region at this `path`")
	cmd.Flags().DurationVarP(&every, "interval", "i", time.Second, "how often to look")
	cmd.Flags().BoolVar(&only, "read-only", false, "touch nothing, not even what dead processes hold")
	return cmd
}
