package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"ration/internal/humanfmt"
	"ration/internal/limit"
	"ration/internal/selftest"
)

type selftestFlags struct {
	processes int
	through   string // selftest.Library, selftest.Region, or empty for the default
}

func newSelftestCommand(a *app) *cobra.Command {
	var f selftestFlags
	cmd := &cobra.Command{
		Use:   "selftest",
		Short: "Check on this machine what ration promises",
		Long: `Start real processes of one job at once on this machine, kill one of them, and
print a verdict for each thing that ration promises. No GPU is needed.

With --through library they are unmodified CUDA programs, with the library
preloaded and a stand-in driver. With --through region they call the accounting
themselves and see each grant and refusal from inside. The first is the default,
where this ration was built with its library.

Exit status: 0 if every check passed, 1 if one failed. A check that cannot be
made from where you are (host PIDs, inside a container) is skipped and says so.`,
		Example: "  ration selftest\n  ration selftest -n 32 --json\n  ration selftest --through region",
		Args:    noArgs,
		RunE:    withStatus(func(*cobra.Command, []string) error { return a.runSelftest(f) }),
	}
	cmd.Flags().IntVarP(&f.processes, "processes", "n", 8, "how many `processes` to start")
	cmd.Flags().StringVar(&f.through, "through", "", "account through the `library` or the region alone")
	return cmd
}

func (a *app) runSelftest(f selftestFlags) error {
	if f.processes < 1 || f.processes > selftest.MaxProcesses {
		return usageError("-n %d: not a number of processes (use 1 to %d)", f.processes, selftest.MaxProcesses)
	}
	switch f.through {
	case "":
		var missing error
		if f.through, missing = selftest.Default(); missing != nil {
			a.err.printf("ration: %v; testing through the region alone\n", missing)
		}
	case selftest.Library, selftest.Region:
	default:
		return usageError("--through %s: not a way to account (use %s or %s)", f.through, selftest.Library, selftest.Region)
	}
	p := a.progress()
	report, err := selftest.Run(f.processes, f.through, p.show)
	p.erase()
	if err != nil {
		return err
	}
	return a.printReport(report, report.Passed, func() { a.printSelftest(report) })
}

func (a *app) printSelftest(r selftest.Report) {
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
	a.out.printf("\n%s: %s, %v on one stand-in device\n", summary, humanfmt.Plural(r.Processes, "process", "processes"), limit.Size(r.Limit))
}
