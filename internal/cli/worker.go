package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"ration/check/bench"
	"ration/check/harness"
)

// newWorkerCommand returns the command that the benchmarks start as their worker
// processes.
func newWorkerCommand() *cobra.Command {
	return &cobra.Command{
		Use:                harness.WorkerCommand,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE:               withStatus(func(_ *cobra.Command, args []string) error { return runWorker(args) }),
	}
}

func runWorker(args []string) error {
	err := harness.Serve(args, bench.Roles)
	if errors.Is(err, harness.ErrUsage) {
		return statusError{err, ExitUsage}
	}
	return err
}
