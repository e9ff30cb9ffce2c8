package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"ration/check/scenario"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/termtext"
)

func newDemoCommand(a *app) *cobra.Command {
	var shared string
	var quick bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show ration at work, without a GPU",
		Long: `Watch eight real processes share the memory of a stand-in device: one asks for
too much, one is stopped, one is killed. At the end three counts are compared:
the memory that the device's ledger has granted, the memory that the processes
hold, and the driver's count. The processes are CUDA programs with the library
preloaded. It takes about 15 seconds, needs no GPU and leaves nothing behind
but the unpacked library.

Exit status: 0 if the accounts agree, 1 if not.`,
		Example: "  ration demo\n  ration demo --limit 24g",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkStandIn(); err != nil {
				return err
			}
			bytes, err := demoLimit(cmd.Flags().Changed("limit"), shared)
			if err != nil {
				return err
			}
			report, err := scenario.Demo(bytes, quick, a.screen())
			if err != nil {
				return err
			}
			return a.printReport(report, report.Agree, func() { a.printDemo(report) })
		},
	}
	cmd.Flags().StringVar(&shared, "limit", "10g", "what they share, by default also from "+limit.EnvMemory+"; a `size` or a share of "+scenario.DemoDevice.String())
	cmd.Flags().BoolVar(&quick, "quick", false, "leave out the pauses")
	return cmd
}

// demoLimit returns the limit in bytes: from the flag if it is set, otherwise from the environment
// if it is there, otherwise the flag's default.
func demoLimit(given bool, flag string) (uint64, error) {
	const source = "--limit"
	set, err := limit.ParseMemorySet(source, flag)
	if err != nil {
		return 0, err
	}
	if !given {
		settings, err := limit.FromEnv(os.Environ())
		if err != nil {
			return 0, err
		}
		if settings.Memory.For(0).IsSet() {
			set = settings.Memory
		}
	}
	size, err := set.For(0).Of(scenario.DemoDevice)
	if err != nil {
		return 0, err
	}
	if size < scenario.DemoMinLimit || size > scenario.DemoDevice {
		return 0, usageError("limit %v: not one for the stand-in device, which has %v (use %v or more of it, with %s)",
			set.For(0), scenario.DemoDevice, scenario.DemoMinLimit, source)
	}
	return uint64(size), nil
}

// screen returns the screen for the demo and the lesson. With --json it shows nothing.
func (a *app) screen() scenario.Screen {
	s := scenario.Screen{
		Out: a.out, Live: a.out.tty, Size: a.out.size, Bar: a.out.bar, Wrap: a.out.wrap, File: os.Stdout,
		Bold: func(text string) string { return a.out.style(bold, text) },
		Dim:  func(text string) string { return a.out.style(dim, text) },
	}
	if a.json {
		s.Out, s.Live = io.Discard, false
	}
	return s
}

// printDemo prints the result of the demo.
func (a *app) printDemo(r scenario.DemoReport) {
	a.out.printf("\n")
	line := func(what, format string, args ...any) {
		a.out.printf("%s  %s\n", a.out.style(bold, termtext.PadRight(what, 8)), a.out.wrap(fmt.Sprintf(format, args...), 10))
	}
	line("accounts", "the device had granted %s, the living processes held %s, of it %s in contexts, and the driver had given %s; after they ended %s, %s and %s, and %d accounts were left",
		humanfmt.Bytes(r.Held.Granted), humanfmt.Bytes(r.Held.Held), humanfmt.Bytes(r.Held.Contexts), humanfmt.Bytes(r.Held.Driver),
		humanfmt.Bytes(r.End.Granted), humanfmt.Bytes(r.End.Held), humanfmt.Bytes(r.End.Driver), r.End.Processes)
	line("fake-smi", "in the job it showed %dMiB / %dMiB, outside %dMiB / %dMiB",
		r.SMI.Inside.Used, r.SMI.Inside.Total, r.SMI.Outside.Used, r.SMI.Outside.Total)
	line("limit", "exceeded in %d of %s readings by an observer; the most was %s of %s",
		r.Exceeded, humanfmt.Count(r.Readings), humanfmt.Bytes(r.Most), humanfmt.Bytes(r.Limit))
	line("waits", "%s requests; no process waited longer than %s for an answer", humanfmt.Count(r.Requests), humanfmt.Duration(time.Duration(r.Slowest)))
	verdict := a.out.style(green, "The accounts agree.")
	if !r.Agree {
		verdict = a.out.style(red, "The accounts do not agree.")
	}
	a.out.printf("\n%s\n", verdict)
}

// checkStandIn returns an error if a policy is in force for this user: it puts the processes of the stand-in GPU into
// the user's job, too.
func checkStandIn() error {
	if job.Ruled() {
		return errors.New("this machine's policy puts all your programs into your job, so none can use a stand-in GPU (ration run --mem 2g -- COMMAND tries a limit inside your ration; root and other machines have the stand-in)")
	}
	return nil
}
