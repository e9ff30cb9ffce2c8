package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"ration/internal/doctor"
)

func (a *app) doctor() *cobra.Command {
	var opt doctor.Options
	cmd := &cobra.Command{
		Use:   "doctor [flags] [-- COMMAND [ARGUMENT...]]",
		Short: "Find out what keeps ration from working here",
		Long: `Look at this machine, with real parts: whether jobs can be made and the kernel
keeps their locks, whether the library loads, where the driver is, and whether
its calls reach the library in each way that programs use them. No memory is
taken from a device. Then look at the jobs that are there.

With a command, run it with the library and without a limit, and say whether it
was counted, and which calls it knows that are not. Its output goes to standard
error.

--fix does what is safe: it removes jobs that have ended, and gives back what
dead processes hold.

Exit status: 0 if nothing failed, 1 if something did. A warning is no failure.`,
		Example: "  ration doctor\n  ration doctor --fix\n  ration doctor --fake-gpu h200\n  ration doctor -- python train.py --steps 1",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && cmd.ArgsLenAtDash() != 0 {
				return usage("%q: a command to try comes after two dashes (ration doctor -- %s)", args[0], args[0])
			}
			return nil
		},
		RunE: does(func(_ *cobra.Command, args []string) error {
			opt.Command = args
			report, err := doctor.Run(opt)
			if err != nil {
				return err
			}
			if a.json {
				err = a.out.print(report)
			} else {
				a.findings(report)
			}
			if err == nil && !report.Passed {
				err = failed()
			}
			return err
		}),
	}
	cmd.Flags().BoolVar(&opt.Fix, "fix", false, "repair what is safe to repair")
	cmd.Flags().StringVar(&opt.FakeGPU, "fake-gpu", "", "look at a stand-in `machine` instead of the driver: h200")
	return cmd
}

func (a *app) findings(r doctor.Report) {
	styles := map[string]string{doctor.Pass: green, doctor.Warn: bold, doctor.Fail: red, doctor.Skip: dim}
	count := map[string]int{}
	width := 0
	for _, c := range r.Checks {
		width = max(width, len(c.Name))
	}
	width = min(width, 24)
	for _, c := range r.Checks {
		count[c.Verdict]++
		a.out.printf("%s  %s  %s\n", a.out.style(styles[c.Verdict], c.Verdict), pad(c.Name, -width), a.out.wrap(printable(c.Text), width+8))
		if c.Way != "" {
			a.out.printf("%s%s\n", pad("", width+8), a.out.wrap("→ "+c.Way, width+8))
		}
	}
	verdict := a.out.style(green, "Nothing stands in the way.")
	switch {
	case count[doctor.Fail] > 0:
		verdict = a.out.style(red, fmt.Sprintf("%d of %d checks failed.", count[doctor.Fail], len(r.Checks)))
	case count[doctor.Warn] > 0:
		verdict = fmt.Sprintf("Nothing failed; %d to look at.", count[doctor.Warn])
	}
	a.out.printf("\n%s\n", verdict)
}
