package cli

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"ration/internal/embedded"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/limit"
)

// Exit statuses of run, when there is no command whose own it could be.
const (
	ExitNotRunnable = 126
	ExitNotFound    = 127
)

func (a *app) run() *cobra.Command {
	var plan launch.Plan
	var mem, tolerance string
	var summary bool
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARGUMENT...]",
		Short: "Start a command with a limit on GPU memory",
		Long: `Start a command as a job. All CUDA processes of it, however many it starts,
share the limit; what would pass it is refused with CUDA's own out-of-memory
error. The command takes ration's place: its exit status, its signals and its
PID are its own. With --summary ration stays to print a table when it ends.

--mem is a limit for each device (10g, 25%), limits by device (0=10g,1=20g), or
both (10g,1=20g); devices are numbered as nvidia-smi does. 0 is no limit, and
without --mem ` + limit.EnvMemory + ` counts, if it is set.

The limits are in the job's region, not in the environment: no process can lose
them. How it finds its job is in the environment, which some programs throw away
(env -i, su -, sudo). --keep puts it where all of the job's programs find it,
in a mount namespace of its own: for root, whoever they run as, and with limits
that only root can change; for others, as themselves only.

Exit status: the command's; 126 if it cannot be run, 127 if it is not there;
before it starts also 1, 2 and 3, as everywhere.`,
		Example: `  ration run --mem 10g -- python train.py
  ration run --mem 25% --summary -- torchrun --nproc-per-node 8 train.py
  srun ration run --name $SLURM_JOB_ID --join --mem 10g -- python train.py
  ration run --fake-gpu h200x2 --mem 10g -- fake-smi`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("ration run needs a command (as in ration run --mem 10g -- python train.py)")
			}
			return nil
		},
		RunE: does(func(cmd *cobra.Command, args []string) error {
			// From here on signals are the command's business.
			signal.Reset()
			launch.Ignored()
			plan.Command = args
			plan.Warn = func(text string) { complain(a.err, errors.New(text)) }
			if err := settings(cmd, &plan, mem, tolerance); err != nil {
				return err
			}
			j, err := plan.Prepare()
			if err != nil {
				return launchError(err)
			}
			if summary || j.NeedsParent() {
				return a.supervise(j, summary)
			}
			return launchError(j.Become())
		}),
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // what follows the command is the command's
	flags.StringVar(&mem, "mem", "", "`limits` on GPU memory: 10g, 25%, 0=10g,1=20g")
	flags.StringVar(&tolerance, "tolerance", "", "how far usage may pass a limit, in `per cent`")
	flags.StringVar(&plan.Name, "name", "", "the job's `name`; by default the command's and its PID")
	flags.BoolVar(&plan.Join, "join", false, "share the job of that name, if it lives already")
	flags.BoolVar(&plan.Keep, "keep", false, "keep the limits also where the environment is lost")
	flags.BoolVar(&summary, "summary", false, "print what was used, on standard error, when the command has ended")
	flags.StringVar(&plan.FakeGPU, "fake-gpu", "", "use a stand-in `machine` instead of the driver: h200x2, small:512m")
	return cmd
}

// settings fills in what the flags and the environment say.
func settings(cmd *cobra.Command, plan *launch.Plan, mem, tolerance string) (err error) {
	if plan.Settings, err = limit.FromEnv(os.Environ()); err != nil {
		return err
	}
	plan.Source = limit.EnvMemory
	if cmd.Flags().Changed("mem") {
		plan.Source = "--mem"
		if plan.Settings.Memory, err = limit.ParseMemorySet(plan.Source, mem); err != nil {
			return err
		}
	}
	if cmd.Flags().Changed("tolerance") {
		if plan.Settings.Tolerance, err = limit.ParseTolerance("--tolerance", tolerance); err != nil {
			return err
		}
	}
	switch {
	case cmd.Flags().Changed("name"):
		if err := limit.CheckName("--name", plan.Name); err != nil {
			return err
		}
		if job.Reserved(plan.Name) {
			return usage("--name %q: ration itself needs that one (choose another)", plan.Name)
		}
	case plan.Join:
		return usage("--join: joins a job by its name (give it one, with --name)")
	}
	if cmd.Flags().Changed("fake-gpu") && plan.FakeGPU == "" {
		return usage("--fake-gpu \"\": not a machine (use h200x2, or small:512m)")
	}
	return nil
}

// launchError gives an error the status that shells give it.
func launchError(err error) error {
	switch {
	case errors.Is(err, launch.ErrNotFound):
		return statusError{err, ExitNotFound}
	case errors.Is(err, launch.ErrNotRunnable):
		return statusError{err, ExitNotRunnable}
	case errors.Is(err, job.ErrInUse), errors.Is(err, launch.ErrNested):
		return statusError{err, ExitUsage}
	case errors.Is(err, embedded.ErrFolder), errors.Is(err, embedded.ErrNoExec):
		return statusError{err, ExitOpen}
	}
	return err
}

// supervise waits for the command and ends as it did.
func (a *app) supervise(j *launch.Job, tell bool) error {
	s, err := j.Supervise()
	if err != nil {
		return launchError(err)
	}
	if tell {
		if err := a.summary(s); err != nil {
			return err
		}
	}
	if status := s.Follow(); status != 0 {
		return statusError{errSaid, status}
	}
	return nil
}

// summary goes to standard error: standard output is the command's.
func (a *app) summary(s launch.Summary) error {
	if a.json {
		return a.err.print(s)
	}
	out := a.err
	ended := fmt.Sprintf("exit status %d", s.Status)
	if s.Signal != 0 {
		ended = fmt.Sprintf("ended by signal %d (%v)", s.Signal, syscall.Signal(s.Signal))
	}
	out.printf("%s  %s, %s s\n", out.style(bold, s.Job), ended, humanfmt.Three(s.Seconds))
	if s.Error != "" {
		out.printf("  %s\n", out.style(red, out.wrap(s.Error, 2)))
	}
	for _, d := range s.Devices {
		if d.Peak == 0 && d.Refused == 0 {
			continue
		}
		line := fmt.Sprintf("device %d  peak %s", d.Device, humanfmt.Bytes(d.Peak))
		if d.Limited && d.Limit > 0 {
			line += fmt.Sprintf(" of %s (%.0f %%), %s refused, %s s at the limit", humanfmt.Bytes(d.Limit),
				100*float64(d.Peak)/float64(d.Limit), humanfmt.Count(d.Refused), humanfmt.Three(d.AtLimit))
		}
		out.printf("  %s\n", line)
	}
	if len(s.Processes) > 0 {
		a.peaks(s.Processes)
	}
	switch {
	case s.Unseen > 0:
		out.printf("  processes that held nothing, or came and went too fast to be seen: %d\n", s.Unseen)
	case len(s.Processes) == 0:
		out.printf("  no process held anything\n")
	}
	return nil
}

func (a *app) peaks(lines []launch.Peak) {
	size := func(n func(launch.Peak) uint64) (func(launch.Peak) string, func(launch.Peak) bool) {
		return func(p launch.Peak) string {
			if p.Context+p.Module+p.Data+p.Overhead == 0 {
				return "?" // it was gone before anybody looked
			}
			return humanfmt.Short(n(p))
		}, func(p launch.Peak) bool { return n(p) > 0 }
	}
	context, hasContext := size(func(p launch.Peak) uint64 { return p.Context })
	module, hasModule := size(func(p launch.Peak) uint64 { return p.Module })
	data, hasData := size(func(p launch.Peak) uint64 { return p.Data })
	driver, hasDriver := size(func(p launch.Peak) uint64 { return p.Overhead })
	columns := []column[launch.Peak]{
		{"PID", true, func(p launch.Peak) string { return fmt.Sprint(p.PID) }, nil},
		{"DEVICE", true, func(p launch.Peak) string { return fmt.Sprint(p.Device) }, func(p launch.Peak) bool { return p.Device > 0 }},
		{"CONTEXT", true, context, hasContext},
		{"MODULE", true, module, hasModule},
		{"DATA", true, data, hasData},
		{"DRIVER", true, driver, hasDriver},
		{"PEAK", true, func(p launch.Peak) string { return humanfmt.Short(p.Total) }, nil},
		{"NAME", false, func(p launch.Peak) string { return p.Name }, nil},
	}
	for _, line := range table(columns, lines, a.err) {
		a.err.printf("  %s\n", line)
	}
}

// inside is what run starts where it needs a namespace for the command.
func inside() *cobra.Command {
	return &cobra.Command{
		Use:                launch.Inside,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: does(func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage("%s: this command is for ration itself, not for people", launch.Inside)
			}
			signal.Reset()
			launch.Ignored()
			return launchError(launch.Enter(args[0]))
		}),
	}
}
