package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"ration/internal/bench"
	"ration/internal/humanfmt"
)

func (a *app) bench() *cobra.Command {
	var env bench.Env
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure what ration costs on this machine",
		Long: `Measure what ration costs on this machine: real processes, no GPU, no root. Each
figure comes with its spread and, where that says something, beside the bare
atomic operation measured in the same run. Where there is a target the row says
"ok" or "over"; a timing never changes the exit status. A value is a median,
unless its name says another percentile.`,
		Example: "  ration bench update\n  ration bench all --json",
		Args:    noArgs,
		RunE:    a.benchmark("", "", &env, benchNames()...).RunE,
	}
	cmd.PersistentFlags().BoolVar(&env.Quick, "quick", false, "a smoke run of a few seconds: its figures mean nothing")
	for _, b := range bench.Benches {
		cmd.AddCommand(a.benchmark(b.Name, "Measure "+b.About, &env, b.Name))
	}
	cmd.AddCommand(a.benchmark("all", "Run all benchmarks, which is also what bench alone does: a minute or two", &env, benchNames()...))
	return cmd
}

func benchNames() (names []string) {
	for _, b := range bench.Benches {
		names = append(names, b.Name)
	}
	return names
}

func (a *app) benchmark(use, short string, env *bench.Env, names ...string) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  noArgs,
		RunE: does(func(*cobra.Command, []string) error {
			p := a.progress()
			env.Say = p.say
			report, err := bench.Run(names, *env)
			p.done()
			if err != nil {
				return err
			}
			if a.json {
				return a.out.print(report)
			}
			a.figures(report)
			return nil
		}),
	}
}

// figures prints a report as tables.
func (a *app) figures(r bench.Report) {
	m := r.Machine
	a.out.printf("%s, %d CPUs, %s, %s %s\n", m.CPU, m.Cores, m.Kernel, m.Go, m.Arch)
	a.out.printf("regions on %s, load average %s\n", m.FileSystem, m.Load)
	a.out.printf("%s, %s, took %.0f s\n", r.Command, r.Date, r.Seconds)
	for _, result := range r.Results {
		a.out.printf("\n%s: %s\n", a.out.style(bold, result.Bench), result.About)
		a.out.printf("%s\n", a.out.style(dim, columns("", "value", "spread", "× bare", "M/s", "target")))
		for _, row := range result.Rows {
			a.figure(row)
		}
		for _, note := range result.Notes {
			a.out.printf("  %s\n", a.out.style(dim, a.out.wrap(note, 2)))
		}
	}
}

func (a *app) figure(r bench.Row) {
	spread, ratio, rate, target := "", "", "", ""
	if r.Low != r.High {
		spread = humanfmt.Range(r.Low, r.High)
		if r.Unit == bench.Percent {
			spread = humanfmt.Three(r.Low) + "–" + humanfmt.Percent(r.High)
		}
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
	a.out.printf("%s\n", columns(r.Name, amount(r), spread, ratio, rate, target))
	if r.Note != "" {
		a.out.printf("    %s\n", a.out.style(dim, r.Note))
	}
}

// columns fits a line of figures into 80 characters.
func columns(name, value, spread, ratio, rate, target string) string {
	line := "  " + pad(name, -26) + pad(value, 9) + pad(spread, 16) + pad(ratio, 7) + pad(rate, 6) + "  " + target
	return strings.TrimRight(line, " ")
}

// amount is a row's figure with its unit.
func amount(r bench.Row) string {
	switch r.Unit {
	case bench.Percent:
		return humanfmt.Percent(r.Value)
	case bench.Count:
		return humanfmt.Count(int64(r.Value))
	}
	return humanfmt.Nanoseconds(r.Value)
}
