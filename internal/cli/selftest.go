package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"ration/internal/limit"
	"ration/internal/selftest"
)

func (a *app) selftest() *cobra.Command {
	var n int
	var through string
	cmd := &cobra.Command{
		Use:   "selftest",
		Short: "Race processes on this machine and check every promise",
		Long: `Start real processes that race for one region on this machine, kill one of them,
and print a verdict for each thing that ration promises. No GPU is needed.

With --through library they are CUDA programs that know nothing of ration, with
the library preloaded and a make-believe driver. With --through region they do
themselves what the library would do for them, and see each grant and refusal
from inside. The first is the default, where this ration was built with its
library.

Exit status: 0 if every check passed, 1 if one failed. A check that cannot be
made from where you are (host PIDs, inside a container) is skipped and says so.`,
		Example: "  ration selftest\n  ration selftest -n 32 --json\n  ration selftest --through region",
		Args:    noArgs,
		RunE: does(func(*cobra.Command, []string) error {
			if n < 1 || n > selftest.MaxProcesses {
				return usage("-n %d: not a number of processes (use 1 to %d)", n, selftest.MaxProcesses)
			}
			switch through {
			case "":
				var why error
				if through, why = selftest.Default(); why != nil {
					a.err.printf("ration: %v; testing through the region alone\n", why)
				}
			case selftest.Library, selftest.Region:
			default:
				return usage("--through %s: not a way to account (use %s or %s)", through, selftest.Library, selftest.Region)
			}
			p := a.progress()
			report, err := selftest.Run(n, through, p.say)
			p.done()
			if err != nil {
				return err
			}
			return a.judged(report, report.Passed, func() { a.verdicts(report) })
		}),
	}
	cmd.Flags().IntVarP(&n, "processes", "n", 8, "how many `processes` race")
	cmd.Flags().StringVar(&through, "through", "", "account through the `library` or the region alone")
	return cmd
}

func (a *app) verdicts(r selftest.Report) {
	styles := map[string]string{selftest.Pass: green, selftest.Fail: red, selftest.Skip: dim}
	count := map[string]int{}
	for _, c := range r.Checks {
		count[c.Verdict]++
		a.out.printf("%s  %-16s  %s\n", a.out.style(styles[c.Verdict], c.Verdict), c.Name, a.out.wrap(c.Figure, 24))
	}
	summary := fmt.Sprintf("%d of %d checks passed", count[selftest.Pass], len(r.Checks))
	if count[selftest.Skip] > 0 {
		summary += fmt.Sprintf(", %d skipped", count[selftest.Skip])
	}
	processes := "processes"
	if r.Processes == 1 {
		processes = "process"
	}
	a.out.printf("\n%s: %d %s, %v on one make-believe device\n", summary, r.Processes, processes, limit.Size(r.Limit))
}
