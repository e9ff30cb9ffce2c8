package cli

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"ration/check/harness/cuda"
	"ration/check/scenario"
	"ration/internal/launch"
	"ration/internal/limit"
)

func newLearnCommand(a *app) *cobra.Command {
	var tasks, quick bool
	cmd := &cobra.Command{
		Use:   "learn",
		Short: "Learn ration in five minutes, without a GPU",
		Long: `First watch eight CUDA programs share a stand-in GPU, as ration demo shows them.
Then do three things yourself: limit a job, change its limit while it runs, and
explain why a request was refused. In the end it says what to do on a real GPU.

No GPU is needed: the stand-in driver is in this program. It takes about five
minutes, Ctrl-C ends it at any moment, and nothing is left behind. Without a
terminal the tasks are done for you, and everything is plain text.

Exit status: 0, also if you leave early; 1 if something did not work.`,
		Example: "  ration learn\n  ration learn --tasks\n  ration learn --quick | less",
		Args:    noArgs,
		RunE:    func(*cobra.Command, []string) error { return a.runLearn(tasks, quick) },
	}
	cmd.Flags().BoolVar(&tasks, "tasks", false, "leave out the story, and begin with the tasks")
	cmd.Flags().BoolVar(&quick, "quick", false, "leave out the story's pauses")
	return cmd
}

func (a *app) runLearn(tasks, quick bool) error {
	if err := checkStandIn(); err != nil {
		return err
	}
	if a.json {
		return usageError("ration learn is for people (for JSON use ration demo --json)")
	}
	if err := cuda.Built(); err != nil {
		return err
	}
	if err := launch.CheckGlibc(); err != nil {
		return err
	}
	screen := a.screen()
	if _, err := windowSize(os.Stdin); err == nil && a.out.tty {
		screen.In = os.Stdin
	}
	if err := screen.EndWithParent(); err != nil {
		return err
	}
	if !tasks {
		if err := a.learnStory(quick); err != nil {
			return err
		}
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	if err := scenario.Learn(exe, screen); errors.Is(err, scenario.ErrLeft) {
		a.out.paragraph(plain, 0, "You left. Nothing of the lesson goes on; ration learn --tasks begins with the tasks.")
	} else if err != nil {
		return err
	}
	a.out.printf("\n%s\n", a.out.style(bold, "On your own GPU"))
	for _, step := range [][2]string{
		{"ration doctor", "check that it works there"},
		{"ration run --mem 10g -- python train.py", "your program, with 10 GiB"},
		{"ration top", "see what runs"},
		{"ration run --help", "more: shares of time, devices"},
	} {
		a.out.printf("  %-42s%s\n", step[0], a.out.style(dim, "# "+step[1]))
	}
	return nil
}

// learnStory shows the demo with a few words around it.
func (a *app) learnStory(quick bool) error {
	a.out.printf("%s\n%s\n\n", a.out.style(bold, "ration gives every CUDA program its ration of GPU memory."),
		a.out.wrap("Eight programs now share 10 GiB of a GPU. One will ask for too much, one will be stopped, and one will be killed. Watch what the others notice.", 0))
	report, err := scenario.Demo(uint64(10*limit.GiB), quick, a.screen())
	if err != nil {
		return err
	}
	if !report.Agree {
		return statusError{errors.New("the accounts did not agree at the end (run ration selftest for details)"), ExitFailed}
	}
	a.out.printf("\n%s\n\n",
		a.out.wrap("No program got more than the limit, none waited for another, and what the killed one held was free at once. The driver's own count agreed to the byte.", 0))
	return nil
}
