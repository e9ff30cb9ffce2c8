package cli

import (
	"os"
	"os/signal"

	"github.com/spf13/cobra"

	"ration/check/bench"
	"ration/internal/launch"
)

// Commands that ration itself starts.

// newInsideCommand returns the command that ration run starts in a new mount namespace.
func newInsideCommand() *cobra.Command {
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
func newWorkerCommand() *cobra.Command {
	return &cobra.Command{Use: bench.WorkerCommand, Hidden: true, Args: noArgs,
		RunE: func(*cobra.Command, []string) error { return bench.ServeWorker(os.Stdin, os.Stdout) }}
}
