package cli

import (
	"errors"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ration/internal/embedded"
	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/limit"
)

type runFlags struct {
	plan           launch.Plan
	mem, tolerance string
	summary        string // where to; empty for none
	compute        computeFlags
	round          string
}

// summaryStderr is --summary without a file.
const summaryStderr = "stderr"

func newRunCommand(a *app) *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARGUMENT...]",
		Short: "Start a command with a ration of GPU memory and time",
		Long: `Start a command as a job. All CUDA processes of it, however many it starts,
share the limit; a request that would exceed it is refused with CUDA's own
out-of-memory error. The command takes ration's place: its exit status, its
signals and its PID are its own. With --summary ration stays to print a table
when the command ends.

--mem is a limit for each device (10g, 25%), limits by device (0=10g,1=20g), or
both (10g,1=20g); devices are numbered as nvidia-smi does. 0 is no limit, and
without --mem ` + limit.EnvMemory + ` counts, if it is set.

--compute is a share of a device's time, written like --mem but in whole per
cent: at least so much whenever the job has work, and more while others have
none. --compute-max is a cap: at most so much, also while the GPU is idle;
launches wait. All processes of the job have them together. --compute-round is
the time that is shared, 20ms without it: longer ones lose less to switching,
shorter ones make small kernels wait less. Without these flags
` + limit.EnvCompute + `, ` + limit.EnvPolicy + `,
` + limit.EnvComputeMax + ` and ` + limit.EnvRound + ` count, if they are set.
Where a share cannot be kept, ration says so and the program runs without it;
` + limit.EnvMode + `=strict makes that an error of the program.

The limits are in a file, the job's region, not in the environment: no process
can lose them. The path of the region is in the environment, which some programs
clear (env -i, su -, sudo). --keep puts the job where all of its programs
find it, in a mount namespace of its own: for root, for programs of any user,
and with limits that only root can change; for others, for their own programs
only.

Exit status: the command's; 126 if it cannot be run, 127 if it was not found;
before it starts also 1, 2 and 3, as everywhere.`,
		Example: `  ration run --mem 10g -- python train.py
  ration run --mem 10g --compute 30% -- python train.py
  ration run --mem 25% --summary -- torchrun --nproc-per-node 8 train.py
  srun ration run --name $SLURM_JOB_ID --join --mem 10g -- python train.py
  ration run --fake-gpu h200x2 --mem 10g -- fake-smi`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError("ration run needs a command (as in ration run --mem 10g -- python train.py)")
			}
			return nil
		},
		ValidArgsFunction: completeCommand,
		RunE:              withStatus(func(cmd *cobra.Command, args []string) error { return a.runRun(cmd, f, args) }),
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // flags after the command are the command's
	f.addLimits(flags)
	flags.StringVar(&f.plan.Name, "name", "", "the job's `name`; by default the command's and its PID")
	flags.BoolVar(&f.plan.Join, "join", false, "share the job of that name, if it is in use")
	flags.BoolVar(&f.plan.Keep, "keep", false, "keep the limits also where the environment is lost")
	flags.StringVar(&f.summary, "summary", "", "print what was used when the command has ended, to standard error or to this `file`; - is standard output")
	flags.Lookup("summary").NoOptDefVal = summaryStderr
	return cmd
}

// addLimits adds the flags of a job's limits and devices.
func (f *runFlags) addLimits(flags *pflag.FlagSet) {
	flags.StringVar(&f.mem, "mem", "", "`limits` on GPU memory: 10g, 25%, 0=10g,1=20g")
	flags.StringVar(&f.tolerance, "tolerance", "", "how far usage may exceed a limit, in `per cent`")
	f.compute.add(flags)
	flags.StringVar(&f.round, "compute-round", "", "the `time` that shares divide: 1ms to 200ms")
	flags.StringVar(&f.plan.FakeGPU, "fake-gpu", "", "use a stand-in `machine` instead of the driver: h200x2, small:512m")
}

func (a *app) runRun(cmd *cobra.Command, f runFlags, command []string) error {
	// From here on signals are for the command.
	signal.Reset()
	launch.RestoreIgnoredSignals()
	f.plan.Command = command
	f.plan.Warn = func(text string) { printError(a.err, errors.New(text)) }
	if err := f.readSettings(cmd); err != nil {
		return err
	}
	for _, text := range limit.Meaningless(os.Environ()) {
		f.plan.Warn(text)
	}
	to, err := a.openSummary(f.summary)
	if err != nil {
		return err
	}
	j, err := f.plan.Prepare()
	if err != nil {
		return withLaunchStatus(err)
	}
	if to != nil || j.NeedsParent() {
		return a.supervise(j, to)
	}
	return withLaunchStatus(j.Exec())
}

// readSettings completes the plan from the flags and the environment.
func (f *runFlags) readSettings(cmd *cobra.Command) (err error) {
	plan := &f.plan
	if plan.Settings, err = limit.FromEnv(os.Environ()); err != nil {
		return err
	}
	plan.Sources = launch.Sources{Memory: limit.EnvMemory, Compute: limit.EnvCompute, ComputeMax: limit.EnvComputeMax}
	if cmd.Flags().Changed("mem") {
		plan.Sources.Memory = "--mem"
		if plan.Settings.Memory, err = limit.ParseMemorySet(plan.Sources.Memory, f.mem); err != nil {
			return err
		}
	}
	share, most, err := f.compute.parse(cmd)
	if err != nil {
		return err
	}
	if share.IsSet() {
		plan.Sources.Compute, plan.Settings.Compute = computeFlag, share
	}
	if most.IsSet() {
		plan.Sources.ComputeMax, plan.Settings.ComputeMax = computeMaxFlag, most
	}
	if cmd.Flags().Changed("compute-round") {
		if plan.Settings.Round, err = limit.ParseRound("--compute-round", f.round); err != nil {
			return err
		}
	}
	if err := checkCompute(plan.Settings.Compute, plan.Settings.ComputeMax); err != nil {
		return err
	}
	if cmd.Flags().Changed("tolerance") {
		if plan.Settings.Tolerance, err = limit.ParseTolerance("--tolerance", f.tolerance); err != nil {
			return err
		}
	}
	switch {
	case cmd.Flags().Changed("name"):
		if err := checkNewName("--name", plan.Name); err != nil {
			return err
		}
	case plan.Join:
		return usageError("--join: joins a job by its name (give it one, with --name)")
	}
	if cmd.Flags().Changed("fake-gpu") && plan.FakeGPU == "" {
		return usageError("--fake-gpu \"\": not a machine (use h200x2, or small:512m)")
	}
	return nil
}

// withLaunchStatus gives an error the exit status that shells give it.
func withLaunchStatus(err error) error {
	switch {
	case errors.Is(err, launch.ErrNotFound):
		return statusError{err, ExitNotFound}
	case errors.Is(err, launch.ErrNotRunnable):
		return statusError{err, ExitNotRunnable}
	case errors.Is(err, job.ErrInUse), errors.Is(err, launch.ErrNested), errors.Is(err, launch.ErrNotStanding), errors.Is(err, launch.ErrMachine):
		return statusError{err, ExitUsage}
	case errors.Is(err, embedded.ErrFolder), errors.Is(err, embedded.ErrNoExec):
		return statusError{err, ExitOpen}
	}
	return err
}

// supervise waits for the command and ends as it did. The summary is for nobody where
// there is nowhere to print it.
func (a *app) supervise(j *launch.Job, summary *terminal) error {
	s, err := j.Supervise()
	if err != nil {
		return withLaunchStatus(err)
	}
	if summary != nil {
		if err := a.printSummary(*summary, s); err != nil {
			return err
		}
	}
	if status := s.EndAsCommand(); status != 0 {
		return statusError{errReported, status}
	}
	return nil
}
