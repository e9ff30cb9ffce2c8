package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/limit"
	"ration/internal/policy"
	"ration/internal/sleep"
)

type runFlags struct {
	plan    launch.Plan
	limits  limitFlags
	round   string
	labels  []string
	summary string // file for the summary; empty for none
	wait    string // how long to wait for room, as a duration; empty for no wait
	wake    string // how a job that fell asleep by itself wakes: auto or manual
}

// waitForever is the value of --wait without a time.
const waitForever = "forever"

// summaryStderr is the value of --summary without a file.
const summaryStderr = "stderr"

func newRunCommand(a *app) *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:        "run [flags] -- COMMAND [ARGUMENT...]",
		SuggestFor: []string{"exec", "start", "launch"},
		Short:      "Start a command with a ration of GPU memory and time",
		Long: `Start a command as a job. All CUDA processes that it starts share the limit. A
request that would exceed the limit is refused with CUDA's own out-of-memory
error, which frameworks handle as on a full card.

ration waits for the command, passes signals on to it, and ends as it does: with
its exit status, or by the same signal. If ration is killed, so is the command.
How it ended is kept for ration wait and ration ps -a, with the job. With
--summary ration prints the used memory and time at the end; with --json, FILE
then contains one JSON value and nothing else.

--mem is a limit for each device (10g, 25%), for some devices (0=10g,1=20g), or
both (10g,1=20g or 1=20g,others=10g). The job cannot use a device that --mem
does not name: 0=10g,others=none lets it, without a limit. Devices have the
numbers of nvidia-smi. none is no limit. Without --mem the limit is that of
` + limit.EnvMemory + `, if it is set.

--devices 1 puts the job on one GPU: the one with most memory that is neither in
the limit of another of your jobs nor in use, and of equal ones the first. The
command sees no other GPU. ration why explains the choice. If
CUDA_VISIBLE_DEVICES is set, the choice is among its GPUs, and the command does
not get it. Under a policy the job is on the GPU with most of your ration free,
and that variable counts the GPUs of your ration, as in your other programs.

--compute is a share of each device's time, in per cent: the job gets at least
that much when it has work, and more when others have none. --compute-max is a
cap: the job never gets more, even on an idle GPU. Both are for all processes of
the job together. --compute-round is the time that shares divide, 20ms without
it: a longer one wastes less, a shorter one makes small kernels wait less.
Without these flags the variables ` + limit.EnvCompute + `,
` + limit.EnvPolicy + `, ` + limit.EnvComputeMax + ` and
` + limit.EnvRound + ` count. If the driver cannot keep a share, ration
says so and the program runs without it; ` + limit.EnvMode + `=strict makes
that an error of the program.

--priority says which jobs come first on the GPUs that they share. Beside a job
of high priority that has work, a job of low priority gets very short turns, so
that the first hardly waits for it, and at least 1 % of the time. Normal is as
if there were no priorities. Without the flag ` + limit.EnvPriority + ` counts.
Under a policy it needs --mem, and the policy says which is the highest.

--wait-alloc makes a request that does not fit in the limit wait for memory that
other processes of the job hold, first come, first served, and fail only after
that time. Without the flag ` + limit.EnvWaitAlloc + ` counts. Not under a policy.

The limits are in a file, so no process can lose them. How a process finds that
file is in its environment, which some programs clear: env -i, su -, sudo. With
--keep they find it all the same, and the job has a mount namespace of its own.
If root uses --keep, it works for programs of all users, and only root can
change the limits. If others do, it works for their own programs.

Limits of several jobs may add up to more than the GPU has: then requests can
fail although the job is within its limit. With --wait the command starts only
when the GPU has room for --mem beside the limits of all your jobs and the
memory that other programs hold, and until then it waits in a queue, first come,
first served (ration queue). --wait=30m gives up after that time. Ctrl-C leaves
the queue. --mem 1=10g waits for GPU 1 alone, --mem 10g for all GPUs.

--sleep-after 10m puts the job to sleep each time its processes have done
nothing on the GPU for ten minutes (ration sleep --help). What they do elsewhere
does not count, nor do keyboard and network. After a tenth of that time it
sleeps if the first command in the queue waits for its room; of several jobs the
one that has been unused longest. The next call to the GPU wakes it, or only
ration wake with --wake manual. With --join the job's own setting counts. Under
a policy it needs --mem.

--sleep-fast makes falling asleep and waking several times faster. The command's
GPU memory is then mapped in another way, which few programs notice: they cannot
share it with other processes by IPC (docs/sleep.md). It needs one GPU.

Where a policy is in force (ration policy show), the command is in the job of
all your programs. With --mem it has that much of your ration for itself, until
it ends: your other programs have the rest.

Exit status: the command's; 126 if it cannot be run, 127 if it was not found;
before it starts also 1, 2 and 3, as everywhere, and ` + fmt.Sprint(exitTimeout) + ` if the time of --wait
has passed.`,
		Example: `  ration run --mem 10g -- python train.py
  ration run --mem 10g --compute 30% -- python train.py
  ration run --mem 40g --wait -- python train.py
  ration run --mem 25% --summary -- torchrun --nproc-per-node 8 train.py
  srun ration run --name $SLURM_JOB_ID --join --mem 10g -- python train.py
  ration run --fake-gpu h200x2 --mem 10g -- fake-smi`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return notStarted(f.plan.Name, usageError("ration run needs a command (as in ration run --mem 10g -- python train.py)"))
			}
			return nil
		},
		ValidArgsFunction: completeCommand,
		RunE:              func(cmd *cobra.Command, args []string) error { return a.runRun(cmd, f, args) },
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return notStarted(cmp.Or(f.plan.Name, nameIn(os.Args)), flagError(cmd, err)) // flags behind the wrong one are not parsed
	})
	flags := cmd.Flags()
	flags.SetInterspersed(false) // flags after the command belong to the command
	f.addLimits(flags)
	f.limits.addDevices(flags)
	flags.StringVar(&f.plan.Name, "name", "", "the job's `name`; by default the command's and its PID")
	flags.BoolVar(&f.plan.Join, "join", false, "share the job of that name, if it is in use")
	flags.BoolVar(&f.plan.Keep, "keep", false, "keep the limits also where the environment is lost")
	flags.StringArrayVar(&f.labels, "label", nil, "record a label `KEY=VALUE` of the job; ration report --by project adds up by the label project")
	flags.StringVar(&f.wait, "wait", "", "wait until the GPU has room for --mem; at most this `time`, as --wait=30m")
	flags.Lookup("wait").NoOptDefVal = waitForever
	flags.DurationVar(&f.plan.SleepAfter, "sleep-after", 0, "put the job to sleep when it has done nothing on the GPU for this `time`, as 10m")
	flags.StringVar(&f.wake, "wake", wakeAuto, "`how` it wakes then: auto, by its next call to the GPU, or manual, by ration wake")
	flags.BoolVar(&f.plan.SleepFast, "sleep-fast", false, "move GPU memory with several threads when the job sleeps and wakes")
	flags.StringVar(&f.summary, "summary", "", "print what was used when the command has ended, to standard error or to this `file`; - is standard output")
	flags.Lookup("summary").NoOptDefVal = summaryStderr
	return cmd
}

// envSlurmAccount is where Slurm says which account a job is charged to.
const envSlurmAccount = "SLURM_JOB_ACCOUNT"

// readLabels reads the labels on the command line. Without a project among them, an account of Slurm is the project.
func readLabels(texts []string, account string) (map[string]string, error) {
	labels, err := job.ParseLabels(texts)
	if err != nil {
		return nil, usageError("--label %v", err)
	}
	if more, err := job.ParseLabels([]string{job.Project + "=" + account}); err == nil && labels[job.Project] == "" {
		labels[job.Project] = more[job.Project]
	}
	return labels, nil
}

// addLimits adds the flags for a job's limits and devices.
func (f *runFlags) addLimits(flags *pflag.FlagSet) {
	f.limits.addMemory(flags)
	f.limits.addCompute(flags)
	f.limits.addPriority(flags)
	f.limits.addWaitAlloc(flags)
	flags.StringVar(&f.round, "compute-round", "", "the `time` that shares divide: 1ms to 200ms")
	flags.StringVar(&f.plan.FakeGPU, "fake-gpu", "", "use a stand-in `machine` instead of the driver: h200x2, small:512m")
}

func (a *app) runRun(cmd *cobra.Command, f runFlags, command []string) error {
	// From here on signals go to the command.
	signal.Reset()
	launch.RestoreIgnoredSignals()
	f.plan.Command, f.plan.Warn = command, a.warn
	j, to, err := a.prepareRun(cmd, &f)
	if err != nil {
		if err = statusOf(err); errors.Is(err, job.ErrInUse) {
			return err
		}
		return notStarted(f.plan.Name, err)
	}
	if j.InUsersJob() {
		return j.Exec()
	}
	return a.supervise(j, to)
}

// notStarted records that the command of a job was not started, for ration wait. It returns the error.
func notStarted(name string, err error) error {
	if name != "" {
		job.RecordNotStarted(name, exitStatus(err), err.Error())
	}
	return err
}

// nameIn returns the value of --name among the arguments of ration run, if two dashes are between them and the command's.
func nameIn(args []string) string {
	flags := args[:max(slices.Index(args, "--"), 0)]
	for i, arg := range flags {
		if value, is := strings.CutPrefix(arg, "--name="); is {
			return value
		} else if arg == "--name" && i+1 < len(flags) {
			return flags[i+1]
		}
	}
	return ""
}

// prepareRun prepares the job, and opens the output of the summary if one is wanted.
func (a *app) prepareRun(cmd *cobra.Command, f *runFlags) (j *launch.Job, to *terminal, err error) {
	if f.plan.Labels, err = readLabels(f.labels, os.Getenv(envSlurmAccount)); err != nil {
		return nil, nil, err
	}
	if err := f.readSettings(cmd); err != nil {
		return nil, nil, err
	}
	f.plan.RationOn = rationOn
	if err := f.readWait(a.warn); err != nil {
		return nil, nil, err
	}
	if err := f.readSleep(cmd); err != nil {
		return nil, nil, err
	}
	if to, err = a.openSummary(f.summary); err != nil {
		return nil, nil, err
	}
	f.plan.Record = to != nil
	if len(f.labels) > 0 && job.Ruled() && !f.plan.Settings.Memory.IsSet() {
		a.warn("the command is in the job of all your programs, for which --label does not count (with --mem it has a job of its own)")
	}
	j, err = f.plan.Prepare()
	if errors.Is(err, launch.ErrNoRoom) {
		err = statusError{err, exitTimeout}
	}
	if errors.Is(err, launch.ErrNotFound) && f.summary == summaryStderr {
		err = fmt.Errorf("%w; a file for the summary is --summary=%s", err, f.plan.Command[0])
	}
	return j, to, err
}

// readSettings completes the plan from the flags and the environment.
func (f *runFlags) readSettings(cmd *cobra.Command) (err error) {
	plan := &f.plan
	if plan.Settings, err = limit.FromEnv(os.Environ()); err != nil {
		return err
	}
	given, err := f.limits.parse(cmd.Flags())
	if err != nil {
		return err
	}
	source := func(given bool, flag, variable string) string {
		if given {
			return flag
		}
		return variable
	}
	plan.Sources = launch.Sources{Memory: source(given.Memory.IsSet(), "--mem", limit.EnvMemory),
		Compute: source(given.Compute.IsSet(), "--compute", limit.EnvCompute), ComputeMax: source(given.ComputeMax.IsSet(), "--compute-max", limit.EnvComputeMax)}
	if given.Memory.IsSet() {
		plan.Sources.MemoryText = f.limits.mem
	}
	plan.Sources.Misplaced = slices.ContainsFunc(plan.Command, func(arg string) bool { return arg == "--mem" || strings.HasPrefix(arg, "--mem=") })
	plan.Settings.Limits = given.Or(plan.Settings.Limits)
	if cmd.Flags().Changed("compute-round") {
		if plan.Settings.Round, err = limit.ParseRound("--compute-round", f.round); err != nil {
			return err
		}
	}
	if cmd.Flags().Changed("wait-alloc") {
		if plan.Settings.WaitAlloc, err = limit.ParseWaitAlloc("--wait-alloc", f.limits.waitAlloc); err != nil {
			return err
		}
	}
	if err := checkCompute(plan.Settings.Limits); err != nil {
		return err
	}
	switch {
	case cmd.Flags().Changed("name"):
		if err := checkNewName("--name", plan.Name); err != nil {
			return err
		}
	case plan.Join:
		return usageError("--join: joins a job by its name (give it one, with --name)")
	}
	if cmd.Flags().Changed("fake-gpu") && (plan.FakeGPU == "" || plan.FakeGPU[0] == '-') { // the next flag
		return usageError("--fake-gpu %q: not a machine (use h200x2, or small:512m)", plan.FakeGPU)
	}
	for _, text := range limit.Meaningless(os.Environ()) {
		plan.Warn(text)
	}
	if err := launch.CheckLogFile(); err != nil {
		plan.Warn(err.Error())
	}
	return nil
}

// rationOn is launch.Plan.RationOn by the policy in force.
func rationOn() int {
	p, err := policy.InForce()
	if err != nil {
		return 0
	}
	return p.OnDevices(os.Getuid())
}

// readWait completes the plan from --wait.
func (f *runFlags) readWait(tell func(string)) error {
	if f.wait == "" {
		return nil
	}
	f.plan.Wait = &launch.Wait{Tell: tell, Sleep: sleep.ForRoom}
	if os.Geteuid() == 0 && job.PolicyInForce() {
		f.plan.Wait.Idle, f.plan.Wait.TakeBack = policy.IdleUsers, policy.TakeBack
	}
	if f.wait == waitForever {
		if _, err := time.ParseDuration(f.plan.Command[0]); err == nil {
			return usageError("%q is taken as the command (write the time as --wait=%[1]s)", f.plan.Command[0])
		}
		return nil
	}
	most, err := time.ParseDuration(f.wait)
	if err != nil || most <= 0 {
		return usageError("--wait=%q: not a time (use --wait=30m or --wait=2h, or --wait alone)", f.wait)
	}
	f.plan.Wait.Most = most
	return nil
}

// Values of --wake.
const (
	wakeAuto   = "auto"
	wakeManual = "manual"
)

// leastSleepAfter is the shortest time of --sleep-after.
const leastSleepAfter = time.Second

// checkWake returns an error for a value of --wake that does not exist.
func checkWake(text string) error {
	if text != wakeAuto && text != wakeManual {
		return usageError("--wake %s: not auto or manual", text)
	}
	return nil
}

// readSleep completes the plan from --sleep-after and --wake.
func (f *runFlags) readSleep(cmd *cobra.Command) error {
	p := &f.plan
	p.WakeManual = f.wake == wakeManual
	switch given := cmd.Flags().Changed("sleep-after"); {
	case checkWake(f.wake) != nil:
		return checkWake(f.wake)
	case !given && cmd.Flags().Changed("wake"):
		return usageError("--wake %s: the job does not fall asleep by itself (add --sleep-after 10m)", f.wake)
	case given && p.SleepAfter < leastSleepAfter:
		return usageError("--sleep-after %v: use a time of %v or more", p.SleepAfter, leastSleepAfter)
	case given && p.FakeGPU != "":
		return usageError("--sleep-after: a job with a machine of its own (--fake-gpu) cannot be put to sleep (leave it out)")
	}
	return nil
}

// beside returns what runs beside the command of a job that falls asleep by itself; nil for other jobs.
func (a *app) beside(j *launch.Job) func(context.Context) {
	info := job.InfoOf(j.Lock.Job)
	if info.SleepAfter == 0 {
		return nil
	}
	return func(ctx context.Context) {
		sleep.WhenIdle(ctx, j.Counted(), j.Lock.Folder, sleep.Rule{After: info.SleepAfter, Manual: info.WakeManual}, a.warn)
	}
}

// supervise waits for the command and ends with its status. It prints no summary if summary is nil.
func (a *app) supervise(j *launch.Job, summary *terminal) error {
	s, err := j.Supervise(summary != nil, a.beside(j))
	if err != nil {
		return err
	}
	if summary != nil {
		err = a.printSummary(*summary, s)
	}
	if err != nil {
		a.warn(err.Error()) // and the command's status counts, if it failed
	}
	if status := s.EndAsCommand(); status != 0 {
		return statusError{errReported, status}
	}
	if err != nil {
		return errFailed
	}
	return nil
}
