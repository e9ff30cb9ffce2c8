package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"ration/check/bench"
	"ration/check/procgroup"
)

// newWorkerCommand returns the command that the benchmarks start as their worker
// processes.
func newWorkerCommand() *cobra.Command {
	return &cobra.Command{
		Use:                procgroup.Command,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE:               withStatus(func(_ *cobra.Command, args []string) error { return runWorker(args) }),
	}
}

func runWorker(args []string) error {
	err := procgroup.Serve(args, bench.Roles)
	if errors.Is(err, procgroup.ErrUsage) {
		return statusError{err, ExitUsage}
	}
	return err
}
