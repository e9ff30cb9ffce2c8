package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"ration/check/scenario"
	"ration/internal/humanfmt"
	"ration/internal/limit"
)

func newSelftestCommand(a *app) *cobra.Command {
	var processes int
	cmd := &cobra.Command{
		Use:   "selftest",
		Short: "Check ration's promises on this machine",
		Long: `Start CUDA programs of one job at the same moment, with the library preloaded
and a stand-in driver, and kill one of them. For each promise of ration, print
whether it is kept on this machine. No GPU is needed.

Exit status: 0 if every check passed, 1 if one failed. A check that is
impossible here (for example host PIDs inside a container) is skipped, with the
reason.`,
		Example: "  ration selftest\n  ration selftest -n 32 --json",
		Args:    noArgs,
		RunE:    func(*cobra.Command, []string) error { return a.runSelftest(processes) },
	}
	cmd.Flags().IntVarP(&processes, "processes", "n", 8, "how many `processes` to start")
	return cmd
}

func (a *app) runSelftest(processes int) error {
	if err := checkStandIn(); err != nil {
		return err
	}
	if processes < 1 || processes > scenario.MaxProcesses {
		return usageError("-n %d: not a number of processes (use 1 to %d)", processes, scenario.MaxProcesses)
	}
	p := a.progress()
	report, err := scenario.Selftest(processes, p.show)
	p.erase()
	if err != nil {
		return err
	}
	return a.printReport(report, report.Passed, func() { a.printSelftest(report) })
}

func (a *app) printSelftest(r scenario.SelftestReport) {
	styles := map[string]string{scenario.Pass: green, scenario.Fail: red, scenario.Skip: dim}
	count := map[string]int{}
	for _, c := range r.Checks {
		count[c.Verdict]++
		a.out.printf("%s  %-16s  %s\n", a.out.style(styles[c.Verdict], c.Verdict), c.Name, a.out.wrap(c.Detail, 24))
	}
	summary := fmt.Sprintf("%d of %d checks passed", count[scenario.Pass], len(r.Checks))
	if count[scenario.Skip] > 0 {
		summary += fmt.Sprintf(", %d skipped", count[scenario.Skip])
	}
	a.out.printf("\n%s: %s, %v on one stand-in device\n", summary, humanfmt.Plural(r.Processes, "process", "processes"), limit.Size(r.Limit))
}
