package cli

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"ration/internal/demo"
	"ration/internal/humanfmt"
	"ration/internal/limit"
)

func (a *app) demo() *cobra.Command {
	var size string
	var quick bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See it work, without a GPU",
		Long: `Watch eight real processes share the memory of a make-believe device: one asks
for too much, one is stopped, one is killed; and see that the books agree in the
end. They are CUDA programs with the library preloaded. It takes about 15
seconds, needs no GPU and leaves nothing behind but the unpacked library.

Exit status: 0 if the books agree, 1 if not.`,
		Example: "  ration demo\n  ration demo --limit 24g",
		Args:    noArgs,
		RunE: does(func(cmd *cobra.Command, _ []string) error {
			budget, err := demoLimit(cmd.Flags().Changed("limit"), size)
			if err != nil {
				return err
			}
			report, err := demo.Run(budget, quick, a.screen())
			if err != nil {
				return err
			}
			return a.judged(report, report.Agree, func() { a.proof(report) })
		}),
	}
	cmd.Flags().StringVar(&size, "limit", "10g", "what they share, by default also from "+limit.EnvMemory+"; a `size` or a share of "+demo.Device.String())
	cmd.Flags().BoolVar(&quick, "quick", false, "without the pauses in which to look")
	return cmd
}

// demoLimit is the budget: from the flag, or else the environment, or else the
// flag's default.
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
	size, err := set.For(0).Of(demo.Device)
	if err != nil {
		return 0, err
	}
	if size < demo.MinLimit || size > demo.Device {
		return 0, usage("limit %v: not one for the make-believe device, which has %v (use %v or more of it, with %s)",
			set.For(0), demo.Device, demo.MinLimit, source)
	}
	return uint64(size), nil
}

// screen is where the demo plays: nowhere, if it is only asked for its figures.
func (a *app) screen() demo.Screen {
	s := demo.Screen{
		Out: a.out, Live: a.out.tty, Bar: a.out.bar,
		Dim:  func(text string) string { return a.out.style(dim, text) },
		Wrap: a.out.wrap,
	}
	if a.json {
		s.Out, s.Live = io.Discard, false
	}
	return s
}

// proof says what the demo has shown.
func (a *app) proof(r demo.Report) {
	a.out.printf("\n")
	line := func(what, format string, args ...any) {
		a.out.printf("%s  %s\n", a.out.style(bold, pad(what, 9)), a.out.wrap(fmt.Sprintf(format, args...), 11))
	}
	books, end := "the device had granted %s, the living held %s", "; after they left %s and %s, %d slots"
	held, left := []any{humanfmt.Bytes(r.Held.Word), humanfmt.Bytes(r.Held.Sum)}, []any{humanfmt.Bytes(r.End.Word), humanfmt.Bytes(r.End.Sum)}
	if r.Held.Driver != nil && r.End.Driver != nil {
		books += ", of it %s in contexts, and the driver had given %s"
		held = append(held, humanfmt.Bytes(r.Held.Contexts), humanfmt.Bytes(*r.Held.Driver))
		end = "; after they left %s, %s and %s, %d slots"
		left = append(left, humanfmt.Bytes(*r.End.Driver))
	}
	line("the books", books+end, append(append(held, left...), r.End.Slots)...)
	if v := r.View; v != nil {
		line("the views", "fake-smi in the job showed %dMiB / %dMiB, outside %dMiB / %dMiB",
			v.Inside.Used, v.Inside.Total, v.Outside.Used, v.Outside.Total)
	}
	line("the limit", "passed in %d of %s readings by an observer; the most was %s of %s",
		r.Passed, humanfmt.Count(r.Readings), humanfmt.Bytes(r.Most), humanfmt.Bytes(r.Limit))
	line("the waits", "%s requests; nobody waited longer than %s for an answer", humanfmt.Count(r.Requests), humanfmt.Duration(time.Duration(r.Slowest)))
	verdict := a.out.style(green, "The books agree.")
	if !r.Agree {
		verdict = a.out.style(red, "The books do not agree.")
	}
	a.out.printf("\n%s\n", verdict)
}
