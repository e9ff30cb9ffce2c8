// Package cli is the command line of ration: one file for each command, with
// newXCommand for its flags and help and runX for its work. A command writes its
// result to standard output, as text or, with --json, as one JSON value; everything
// else goes to standard error. Its exit status is one of the Exit constants.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"ration/check/bench"
	"ration/check/harness"
	"ration/internal/agent"
	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/node"
	"ration/internal/notify"
	"ration/internal/policy"
	"ration/internal/sleep"
	"ration/internal/tui"
)

// Main runs ration with the given arguments and returns its exit status.
func Main(args []string, stdout, stderr io.Writer) int {
	interrupted := make(chan os.Signal, 1)
	if len(args) == 0 || args[0] != bench.WorkerCommand { // a worker has nothing to clean up
		// SIGPIPE too: a reader that closes its end must not cause processes and folders to be left
		// behind.
		signal.Notify(interrupted, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	}
	ended := make(chan error, 1)
	go func() { ended <- execute(args, stdout, stderr) }()
	for {
		select {
		case err := <-ended:
			printError(stderr, err)
			return exitStatus(err)
		case s := <-interrupted:
			if s == syscall.SIGPIPE && serves.Load() {
				continue // a client has disconnected
			}
			if stop := onSignal.Load(); stop != nil {
				(*stop)()
				continue
			}
			return interrupt(s.(syscall.Signal), stderr)
		}
	}
}

// onSignal is called, if set, when this process is asked to end; then it does not end at once.
var onSignal atomic.Pointer[func()]

// serves is true while this process serves clients. It then does not end when one of them disconnects.
var serves atomic.Bool

// interrupt cleans up after the running command.
func interrupt(s syscall.Signal, stderr io.Writer) int {
	// Everything else that a command leaves unfinished is in a job's region, which tolerates the
	// death of a process.
	harness.KillAll()
	job.RemoveScratch()
	tui.RestoreTerminal()
	return endedBy(s, stderr)
}

// endedBy returns the exit status that shells use for a program ended by a signal. For SIGPIPE it
// prints nothing: a reader that has read enough is not a failure.
func endedBy(s syscall.Signal, stderr io.Writer) int {
	switch s {
	case syscall.SIGPIPE:
	case syscall.SIGINT:
		printError(stderr, errors.New("interrupted"))
	default:
		printError(stderr, fmt.Errorf("ended by %s", unix.SignalName(s)))
	}
	return ExitSignal + int(s)
}

// app has the state that all commands share.
type app struct {
	json bool     // --json
	out  terminal // standard output
	err  terminal // standard error

	node   *node.Reader // for a command that shows the machine
	host   node.HostMeter
	totals *agent.Totals // for a command that shows the machine
	silent bool          // the warning about a silent agent was printed
}

func execute(args []string, stdout, stderr io.Writer) error {
	a := &app{out: newTerminal(stdout), err: newTerminal(stderr)}
	root := newRootCommand(a, args...)
	if len(args) > 0 && (args[0] == cobra.ShellCompRequestCmd || args[0] == cobra.ShellCompNoDescRequestCmd) {
		completeFlags(root)
	}
	root.SetArgs(args)
	root.SetOut(a.out)
	root.SetErr(stderr)
	err := root.Execute()
	var name string
	if err != nil {
		if n, _ := fmt.Sscanf(err.Error(), "unknown command %q for \"ration\"", &name); n == 1 { // cobra's message has several lines
			return unknownCommand(root, name)
		}
	}
	switch writeErr := *a.out.writeErr; {
	case errors.Is(writeErr, syscall.EPIPE):
		return statusError{errReported, ExitSignal + int(syscall.SIGPIPE)}
	case err == nil && writeErr != nil:
		return statusError{fmt.Errorf("writing the output: %w", writeErr), ExitFailed}
	}
	return err
}

// absolute returns a path that is the same in every folder, for messages.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return "/" + path
}

// command makes a command of ration.
type command struct {
	name string
	make func(*app) *cobra.Command
}

// commands are all commands, except for those of cobra.
var commands = []command{
	{"run", newRunCommand},
	{"create", newCreateCommand},
	{"cdi", newCDICommand},
	{"mount", newMountCommand},
	{"kube", newKubeCommand},
	{"doctor", newDoctorCommand},
	{"library", newLibraryCommand},
	{"ps", newPsCommand},
	{"inspect", newInspectCommand},
	{"wait", newWaitCommand},
	{"queue", newQueueCommand},
	{"stop", newStopCommand},
	{"signal", newSignalCommand},
	{"sleep", newSleepCommand},
	{"wake", newWakeCommand},
	{"top", newTopCommand},
	{"web", newWebCommand},
	{"fleet", newFleetCommand},
	{"limit", newLimitCommand},
	{"why", newWhyCommand},
	{"rm", newRmCommand},
	{"agent", newAgentCommand},
	{"events", newEventsCommand},
	{"report", newReportCommand},
	{"metrics", newMetricsCommand},
	{"policy", newPolicyCommand},
	{"notify", newNotifyCommand},
	{"demo", newDemoCommand},
	{"learn", newLearnCommand},
	{"selftest", newSelftestCommand},
	{"bench", newBenchCommand},
	{"schema", newSchemaCommand},
	{"version", newVersionCommand},
	{bench.WorkerCommand, newWorkerCommand},
	{launch.Inside, newInsideCommand},
	{"reap", newReapCommand},
	{sleep.Calls, newCallsCommand},
	{sleep.Waiter, newSleepWaiterCommand},
	{policy.IdleCommand, newSleepWhenIdleCommand},
	{notify.DeliverCommand, newDeliverCommand},
}

// newRootCommand makes ration with all its commands; or, where the arguments begin with the name of one, with that one,
// because all of them take a tenth of the time in which a command starts.
func newRootCommand(a *app, args ...string) *cobra.Command {
	root := &cobra.Command{
		Use:   "ration",
		Short: "Give every CUDA process its ration of GPU memory",
		Long: `ration limits the GPU memory and time of CUDA programs, and counts to the byte
how much each process holds.

A job is a command and all processes that it starts. They share one limit for
each device. A job's limits, and the account of each of its processes, are in
one file: the job's region.

New here? ration learn shows it in five minutes, without a GPU. Variables, files
and exit statuses are in ration(7): man 7 ration.

Exit status: 0 all well; 1 a check failed, or the work could not be done;
2 bad arguments or a bad value in the environment; 3 a region or folder could
not be opened, or there is no such job; 128 and the signal's number where a
signal ended it: 130 for Ctrl-C, 143 for SIGTERM.`,
		Version: version,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if dir := os.Getenv(job.EnvFolder); dir != "" && !filepath.IsAbs(dir) {
				return usageError("%s=%s: not an absolute path, so it would be another folder for a process elsewhere (%s=%s)", job.EnvFolder, dir, job.EnvFolder, absolute(dir))
			}
			return nil
		},
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 { // arguments after two dashes; cobra finds all others
				return unknownCommand(cmd, args[0])
			}
			return cmd.Help()
		},
	}
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print JSON instead of text")
	root.SetFlagErrorFunc(flagError)
	root.SetHelpCommand(newHelpCommand())
	wanted := func(c command) bool { return len(args) > 0 && c.name == args[0] }
	if i := slices.IndexFunc(commands, wanted); i >= 0 {
		root.AddCommand(commands[i].make(a))
		root.CompletionOptions.DisableDefaultCmd = true
	} else {
		for _, c := range commands {
			root.AddCommand(c.make(a))
		}
		root.InitDefaultHelpCmd()
		root.InitDefaultCompletionCmd()
		for _, c := range root.Commands() {
			if c.Name() == "completion" {
				completionCommand(c)
			}
		}
	}
	groupCommands(root)
	withStatuses(root)
	return root
}

// print prints a result as JSON, or calls text.
func (a *app) print(result any, text func()) error {
	if a.json {
		return a.out.printJSON(result)
	}
	text()
	return nil
}

// printReport prints a report, and returns errFailed unless it passed.
func (a *app) printReport(report any, passed bool, text func()) error {
	if err := a.print(report, text); err != nil || passed {
		return err
	}
	return errFailed
}

// warn prints a warning.
func (a *app) warn(text string) { printError(a.err, errors.New(text)) }

// untilSignal returns a context that ends when this process is asked to end. The process does not
// end by itself then.
func untilSignal() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	end := func() { cancel() }
	onSignal.Store(&end)
	serves.Store(true)
	return ctx, func() {
		onSignal.Store(nil)
		cancel()
	}
}
