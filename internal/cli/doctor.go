package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"ration/internal/doctor"
	"ration/internal/humanfmt"
	"ration/internal/termtext"
)

func newDoctorCommand(a *app) *cobra.Command {
	var opt doctor.Options
	cmd := &cobra.Command{
		Use:        "doctor [flags] [-- COMMAND [ARGUMENT...]]",
		SuggestFor: []string{"check"},
		Short:      "Check whether ration works on this machine",
		Long: `Check this machine. Can jobs be made, and does the kernel keep their locks?
Does the library load? Where is the driver, and do its calls reach the library
in each way that programs use? Does the driver keep the time slices of shares?
For the last one, two small programs keep device 0 busy for a second; the
answer is remembered for this driver and kind of GPU. Then it checks the
existing jobs, and the agent: its socket, its version, and its unit if
systemd runs. For each problem it says what to do.

With a command, it runs that command with the library and without a limit, and
checks whether its memory is counted, and which calls that it looked up are
not. The command's output goes to standard error.

--fix repairs what is safe to repair: it removes jobs that have ended, and
returns the memory of dead processes to their jobs.

Exit status: 0 if no check failed, 1 if one did. A warning is not a failure.`,
		Example: "  ration doctor\n  ration doctor --fix\n  ration doctor --fake-gpu h200\n  ration doctor -- python train.py --steps 1",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && cmd.ArgsLenAtDash() != 0 {
				return usageError("%q: a command to try comes after two dashes (ration doctor -- %s)", args[0], args[0])
			}
			return nil
		},
		ValidArgsFunction: completeCommand,
		RunE: func(_ *cobra.Command, args []string) error {
			opt.Command, opt.Version = args, version
			report, err := doctor.Run(opt)
			if err != nil {
				return err
			}
			return a.printReport(report, report.Passed, func() { a.printDoctor(report) })
		},
	}
	cmd.Flags().BoolVar(&opt.Fix, "fix", false, "repair what is safe to repair")
	cmd.Flags().BoolVar(&opt.Measure, "measure", false, "measure again whether the GPU keeps time slices")
	cmd.Flags().StringVar(&opt.FakeGPU, "fake-gpu", "", "check a stand-in `machine` instead of the driver: h200")
	return cmd
}

func (a *app) printDoctor(r doctor.Report) {
	styles := map[string]string{doctor.Pass: green, doctor.Warn: bold, doctor.Fail: red, doctor.Skip: dim}
	count := map[string]int{}
	width := 0
	for _, c := range r.Checks {
		width = max(width, len(c.Name))
	}
	width = min(width, 24)
	indent := width + 8
	for _, c := range r.Checks {
		count[c.Verdict]++
		a.out.printf("%s  %s  %s\n", a.out.style(styles[c.Verdict], c.Verdict), termtext.PadRight(c.Name, width), a.out.wrap(termtext.Printable(c.Text), indent))
		if c.Remedy != "" {
			a.out.printf("%*s%s\n", indent, "", a.out.wrap("→ "+c.Remedy, indent))
		}
	}
	verdict := a.out.style(green, "All checks passed.")
	switch {
	case count[doctor.Fail] > 0:
		verdict = a.out.style(red, fmt.Sprintf("%d of %d checks failed.", count[doctor.Fail], len(r.Checks)))
	case count[doctor.Warn] > 0:
		verdict = fmt.Sprintf("No check failed; %s.", humanfmt.Plural(count[doctor.Warn], "warning", "warnings"))
	}
	a.out.printf("\n%s\n", verdict)
}
