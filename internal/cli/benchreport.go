package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"ration/check/bench"
	"ration/check/benchpage"
	"ration/internal/embedded"
)

// benchPageFile is the default name of the page.
const benchPageFile = "ration-bench.html"

func (a *app) newBenchReportCommand(env *bench.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "report [FILE]",
		Short: "Run all benchmarks and write a page with plots, to send to a colleague",
		Long: `Run all that can be run on this machine, compare CUDA programs without ration
with the same programs in a job, and write a page with plots. The page is one
HTML file that needs nothing else: ration-bench.html, or the named one.

Programs use this machine's GPU if it has one, and the stand-in driver if not;
the page says which. It takes a minute or two.`,
		Example: "  ration bench report\n  ration bench report --quick /tmp/page.html",
		Args:    argCount(0, 1, "a file for the page"),
		ValidArgsFunction: func(_ *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return []cobra.Completion{"html"}, cobra.ShellCompDirectiveFilterFileExt
		},
		RunE: func(_ *cobra.Command, args []string) error {
			return a.runBenchReport(*env, append(args, benchPageFile)[0])
		},
	}
}

func (a *app) runBenchReport(env bench.Env, file string) error {
	if err := embedded.Workload.Built(); err != nil {
		return err
	}
	// Check this first: a file that cannot be written must not be noticed only after minutes of
	// measuring.
	if err := mayWrite(file); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	p := a.progress()
	env.Say = p.show
	compared, driver, err := bench.Compare(env, self)
	var report bench.Measurement
	if err == nil {
		report, err = bench.Run(benchNames(), env)
	}
	p.erase()
	if err != nil {
		return err
	}
	report.Driver, report.Comparisons = driver, compared
	report.Command = "ration bench report"
	if env.Quick {
		report.Command += " --quick"
	}
	var page bytes.Buffer
	if err := benchpage.Write(&page, report.Page(version)); err != nil {
		return err
	}
	if err := os.WriteFile(file, page.Bytes(), 0o644); err != nil {
		return fmt.Errorf("writing the page: %w", err)
	}
	return a.printReport(report, true, func() {
		for _, c := range report.Page(version).Comparisons {
			a.out.printf("%-36s %9s  in a job %9s  %s\n", c.Name, c.NativeText, c.JobText, c.More)
		}
		a.out.printf("\nwrote %s: open it in a browser\n", file)
	})
}

// mayWrite returns an error if a file can be neither created nor written.
func mayWrite(file string) error {
	target := file
	st, err := os.Stat(file)
	switch {
	case err == nil && st.IsDir():
		return usageError("%s: a folder (name a file in it)", file)
	case err != nil:
		target = filepath.Dir(file)
	}
	if err := unix.Access(target, unix.W_OK); err != nil {
		return usageError("writing the page to %s: %v", file, err)
	}
	return nil
}
