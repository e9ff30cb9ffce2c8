package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"ration/check/bench"
	"ration/internal/humanfmt"
	"ration/internal/termtext"
)

func newBenchCommand(a *app) *cobra.Command {
	var env bench.Env
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure what ration costs on this machine",
		Long: `Measure what ration costs on this machine, with real processes. It needs neither
a GPU nor root. C is the library's own code, which CUDA programs run; Go is that
of ration itself. Each value is a median, unless its name says another
percentile, and comes with its spread. Some also come with their ratio to a bare
atomic operation of the same run. A row with a target says "ok" or "over". A
timing never changes the exit status.

ration bench report also compares CUDA programs without ration with the same
programs in a job, and writes a page with plots.`,
		Example: "  ration bench update\n  ration bench all --json",
		Args:    noArgs,
		RunE:    func(*cobra.Command, []string) error { return a.runBench(env, benchNames()) },
	}
	cmd.PersistentFlags().BoolVar(&env.Quick, "quick", false, "a smoke run of a few seconds, whose values mean nothing")
	for _, b := range bench.Benches {
		cmd.AddCommand(a.newBenchSubcommand(b.Name, "Measure "+b.About, &env, b.Name))
	}
	cmd.AddCommand(a.newBenchReportCommand(&env))
	cmd.AddCommand(a.newBenchSubcommand("all", "Run all benchmarks, which is also what bench alone does: a minute or two", &env, benchNames()...))
	return cmd
}

func benchNames() (names []string) {
	for _, b := range bench.Benches {
		names = append(names, b.Name)
	}
	return names
}

func (a *app) newBenchSubcommand(use, short string, env *bench.Env, names ...string) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  noArgs,
		RunE:  func(*cobra.Command, []string) error { return a.runBench(*env, names) },
	}
}

func (a *app) runBench(env bench.Env, names []string) error {
	p := a.progress()
	env.Say = p.show
	report, err := bench.Run(names, env)
	p.erase()
	if err != nil {
		return err
	}
	return a.printReport(report, true, func() { a.printBench(report) })
}

// printBench prints a report as tables.
func (a *app) printBench(r bench.Measurement) {
	m := r.Machine
	a.out.printf("%s, %d CPUs, %s, %s %s\n", m.CPU, m.Cores, m.Kernel, m.Go, m.Arch)
	a.out.printf("regions on %s, load average %s\n", m.FileSystem, m.Load)
	a.out.printf("%s, %s, took %.0f s\n", r.Command, r.Date, r.Seconds)
	for _, result := range r.Results {
		a.out.printf("\n%s: %s\n", a.out.style(bold, result.Bench), result.About)
		a.out.printf("%s\n", a.out.style(dim, benchLine("", "in", "value", "spread", "× bare", "M/s", "target")))
		for _, row := range result.Rows {
			a.printBenchRow(row)
		}
		for _, note := range result.Notes {
			a.out.printf("  %s\n", a.out.style(dim, a.out.wrap(note, 2)))
		}
	}
}

func (a *app) printBenchRow(r bench.Row) {
	spread, ratio, rate, target := "", "", "", ""
	if r.Low != r.High {
		spread = r.SpreadText()
	}
	if r.Ratio > 0 {
		ratio = humanfmt.Three(r.Ratio)
	}
	if r.PerSecond > 0 {
		rate = humanfmt.Three(r.PerSecond / 1e6)
	}
	if r.Target != "" {
		style := green
		if r.Verdict == bench.Over {
			style = red
		}
		target = r.Target + " " + a.out.style(style, r.Verdict)
	}
	a.out.printf("%s\n", benchLine(r.Name, string(r.Language), r.Text(), spread, ratio, rate, target))
	if r.Note != "" {
		a.out.printf("    %s\n", a.out.style(dim, r.Note))
	}
}

// benchLine formats a line of 80 columns.
func benchLine(name, language, value, spread, ratio, rate, target string) string {
	line := "  " + termtext.PadRight(name, 24) + termtext.PadRight(language, 2) + termtext.PadLeft(value, 9) + termtext.PadLeft(spread, 16) +
		termtext.PadLeft(ratio, 7) + termtext.PadLeft(rate, 5) + "  " + target
	return strings.TrimRight(line, " ")
}
