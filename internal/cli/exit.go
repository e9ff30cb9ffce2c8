package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"ration/internal/agent"
	"ration/internal/embedded"
	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/limit"
	"ration/internal/policy"
	"ration/internal/termtext"
)

// Exit statuses. They are part of the interface: scripts rely on them.
const (
	ExitOK          = 0
	ExitFailed      = 1 // a check failed, or the work could not be done
	ExitUsage       = 2 // bad arguments, or a bad value in the environment
	ExitOpen        = 3 // a region or folder could not be opened, or there is no such job
	ExitNotRunnable = 126
	ExitNotFound    = 127
	ExitSignal      = 128 // plus the number of the signal that ended it
)

// statusError is an error with its exit status.
type statusError struct {
	error
	status int
}

func (e statusError) Unwrap() error { return e.error }

// errReported marks an error that the command's output already reports.
var errReported = errors.New("reported")

// errFailed is returned if the output says what failed.
var errFailed = statusError{errReported, ExitFailed}

// usageError is an error in the arguments.
func usageError(format string, args ...any) error {
	return statusError{fmt.Errorf(format, args...), ExitUsage}
}

// withStatuses makes a command, and its subcommands, return errors with an exit status. Errors that
// do not come from a RunE are cobra's, about the arguments.
func withStatuses(cmd *cobra.Command) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			err := run(cmd, args)
			if errors.Is(err, policy.ErrNotRoot) {
				err = fmt.Errorf("%s: %w (sudo %s)", cmd.CommandPath(), err, cmd.CommandPath())
			}
			return statusOf(err)
		}
	}
	for _, sub := range cmd.Commands() {
		withStatuses(sub)
	}
}

// statusOf adds an exit status to a command's error, unless it has one.
func statusOf(err error) error {
	var known statusError
	var input *limit.InputError
	var config *policy.ConfigError
	is := func(targets ...error) bool {
		return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
	}
	switch {
	case err == nil || errors.As(err, &known):
		return err
	case is(launch.ErrNotFound):
		return statusError{err, ExitNotFound}
	case is(launch.ErrNotRunnable):
		return statusError{err, ExitNotRunnable}
	case errors.As(err, &input), errors.As(err, &config), is(job.ErrInUse, launch.ErrNested, launch.ErrNotStanding, launch.ErrMachine, launch.ErrCDIName, launch.ErrCannotWait):
		return statusError{err, ExitUsage}
	case is(job.ErrFolder, job.ErrNoJob, embedded.ErrFolder, embedded.ErrNoExec):
		return statusError{err, ExitOpen}
	}
	return statusError{err, ExitFailed}
}

// exitStatus returns the exit status for an error of statusOf or of cobra.
func exitStatus(err error) int {
	var known statusError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &known):
		return known.status
	}
	return ExitUsage
}

// printError prints an error, unless it is nil or was reported. All messages pass through it, and
// it makes them safe: each is one line, whatever characters a path or a name contains.
func printError(to io.Writer, err error) {
	if err == nil || errors.Is(err, errReported) {
		return
	}
	for _, line := range messages(err) {
		fmt.Fprintln(to, "ration:", line)
	}
}

// noteSilent reports once that an agent does not answer, and what the output lacks because of that.
func (a *app) noteSilent(err error, lacks string) {
	if errors.Is(err, agent.ErrSilent) && !a.silent {
		a.silent = true
		printError(a.err, fmt.Errorf("%w: %s", err, lacks))
	}
}

// messages returns an error as lines of printable text, one for each joined error. A line break
// inside an error comes from a name, and is not printed as one.
func messages(err error) (lines []string) {
	text := err.Error()
	switch wrapped := err.(type) {
	case interface{ Unwrap() []error }:
		var texts []string
		for _, e := range wrapped.Unwrap() {
			texts, lines = append(texts, e.Error()), append(lines, messages(e)...)
		}
		if text == strings.Join(texts, "\n") {
			return lines
		}
	case interface{ Unwrap() error }:
		inner := wrapped.Unwrap()
		if inner == nil {
			break
		}
		if before, after, found := strings.Cut(text, inner.Error()); found {
			lines = messages(inner)
			lines[0] = termtext.Printable(before) + lines[0]
			lines[len(lines)-1] += termtext.Printable(after)
			return lines
		}
	}
	return []string{termtext.Printable(text)}
}
