package cli

import (
	"errors"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"ration/check/bench"
	"ration/internal/agent/privsep"
	"ration/internal/launch"
	"ration/internal/node"
)

// Commands that only ration itself starts.

// newInsideCommand returns the command that ration run starts in a new mount namespace.
func newInsideCommand(*app) *cobra.Command {
	return &cobra.Command{Use: launch.Inside, Hidden: true, DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError("%s: this command is for ration itself, not for people", launch.Inside)
			}
			signal.Reset()
			launch.RestoreIgnoredSignals()
			return launch.Enter(args[0])
		}}
}

// newWorkerCommand returns the command that the benchmarks start as their workers in Go.
func newWorkerCommand(*app) *cobra.Command {
	return &cobra.Command{Use: bench.WorkerCommand, Hidden: true, Args: noArgs,
		RunE: func(*cobra.Command, []string) error { return bench.ServeWorker(os.Stdin, os.Stdout) }}
}

// newReapCommand returns the command that the agent starts for a user, to return the memory of dead
// processes to that user's jobs.
func newReapCommand(*app) *cobra.Command {
	as := 0
	cmd := &cobra.Command{Use: "reap PATH...", Hidden: true, Args: argCount(1, -1, "regions"),
		RunE: func(_ *cobra.Command, args []string) error {
			if as != 0 { // before anything of the user's is touched
				if err := privsep.Become(as, nobodyGroup); err != nil {
					return err
				}
			}
			// It can get no further rights from now on: the region may be hostile, and it needs none.
			err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
			if err != nil {
				return err
			}
			for _, path := range args {
				err = errors.Join(err, node.Return(path))
			}
			return err
		}}
	cmd.Flags().IntVar(&as, "as", 0, "become this user first")
	return cmd
}
