// Package cli is the command line of ration: one file for each command, and here
// what they share. A command writes what was asked for to standard output, as text
// for people or, with --json, as one JSON value; everything else goes to standard
// error. Its exit status is one of the Exit constants.
package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/procgroup"
	"ration/internal/tui"
)

// Exit statuses. They are part of the interface: scripts rely on them.
const (
	ExitOK          = 0
	ExitFailed      = 1   // a check failed, or a command could not do its work
	ExitUsage       = 2   // bad arguments, or a bad value in the environment
	ExitOpen        = 3   // a region or folder could not be opened
	ExitInterrupted = 130 // by a signal that ends programs
)

// Main runs ration with the given arguments and returns its exit status.
func Main(args []string, stdout, stderr io.Writer) int {
	interrupted := make(chan os.Signal, 1)
	if len(args) == 0 || args[0] != procgroup.Command { // a worker dies of a signal like anybody else
		// A reader that went away (SIGPIPE) must not leave our processes and folders
		// behind either.
		signal.Notify(interrupted, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	}
	ended := make(chan error, 1)
	go func() { ended <- run(args, stdout, stderr) }()
	select {
	case err := <-ended:
		complain(stderr, err)
		return statusOf(err)
	case <-interrupted:
		// Whatever the command is in the middle of is in these two, or in the region
		// of a job, where being killed is an ordinary case.
		procgroup.Sweep()
		job.RemoveScratch()
		tui.Sweep()
		complain(stderr, errors.New("interrupted"))
		return ExitInterrupted
	}
}

func complain(to io.Writer, err error) {
	if err == nil || errors.Is(err, errSaid) {
		return
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintln(to, "ration:", line)
	}
}

// app is what commands share.
type app struct {
	json bool
	out  terminal // what was asked for
	err  terminal // progress and complaints
}

func run(args []string, stdout, stderr io.Writer) error {
	a := &app{out: terminalOf(stdout), err: terminalOf(stderr)}
	root := a.root()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.Execute()
	if unwritten := a.out.fault(); err == nil && unwritten != nil {
		return statusError{fmt.Errorf("writing the output: %w", unwritten), ExitFailed}
	}
	return err
}

// root is the command that has all others.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "ration",
		Short: "Give every CUDA process its ration of GPU memory",
		Long: `ration gives every CUDA process on a machine its ration of GPU memory, and knows
to the byte who holds what.

Exit status: 0 all well; 1 a check failed, or the work could not be done;
2 bad arguments or a bad value in the environment; 3 a region or folder could
not be opened; 130 interrupted.`,
		Version:                    version,
		Args:                       noArgs,
		SilenceUsage:               true,
		SilenceErrors:              true,
		SuggestionsMinimumDistance: 2,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
	}
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print JSON instead of text")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		var bad *pflag.InvalidValueError
		if errors.As(err, &bad) {
			return fmt.Errorf("--%s %q: not a value it takes (see %s --help)", bad.GetFlag().Name, bad.GetValue(), cmd.CommandPath())
		}
		return fmt.Errorf("%w (see %s --help)", err, cmd.CommandPath())
	})
	root.AddCommand(a.run(), a.doctor(), a.library(), a.ps(), a.top(), a.limit(), a.why(), a.rm(), a.man(), a.demo(), a.selftest(), a.bench(), a.version(), worker(), inside())
	return root
}

// noArgs is for commands that take flags only, or other commands.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	way := fmt.Sprintf("see %s --help", cmd.CommandPath())
	if !cmd.HasAvailableSubCommands() {
		return fmt.Errorf("%q: %s takes no arguments (%s)", args[0], cmd.CommandPath(), way)
	}
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		way = "did you mean " + strings.Join(near, " or ") + "?"
	}
	return fmt.Errorf("%q: no such command of %s (%s)", args[0], cmd.CommandPath(), way)
}

// errSaid is an error that the output already tells.
var errSaid = errors.New("said")

// statusError is an error that knows its exit status.
type statusError struct {
	error
	status int
}

func (e statusError) Unwrap() error { return e.error }

// does makes what a command does its RunE. An error from there is never one of
// usage, unless it says so; every other error comes from reading the arguments.
func does(f func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		err := f(cmd, args)
		var input *limit.InputError
		var known statusError
		switch {
		case err == nil || errors.As(err, &known):
			return err
		case errors.As(err, &input):
			return statusError{err, ExitUsage}
		case errors.Is(err, job.ErrFolder), errors.Is(err, job.ErrNoJob):
			return statusError{err, ExitOpen}
		}
		return statusError{err, ExitFailed}
	}
}

func statusOf(err error) int {
	var known statusError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &known):
		return known.status
	}
	return ExitUsage
}

// usage is an error in what the user asked for.
func usage(format string, args ...any) error {
	return statusError{fmt.Errorf(format, args...), ExitUsage}
}

// failed is returned when the output says what failed.
func failed() error { return statusError{errSaid, ExitFailed} }

// judged prints a report, as JSON or as people read it, and fails if it is no good
// one.
func (a *app) judged(report any, good bool, show func()) error {
	if !a.json {
		show()
	} else if err := a.out.print(report); err != nil {
		return err
	}
	if !good {
		return failed()
	}
	return nil
}
