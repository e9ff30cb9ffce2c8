package cli

import (
	"os"

	"github.com/spf13/cobra"

	"ration/check/bench"
)

// newWorkerCommand returns the command that the benchmarks start as their workers in Go. Only
// `ration bench` uses it.
func newWorkerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    bench.WorkerCommand,
		Hidden: true,
		Args:   noArgs,
		RunE:   withStatus(func(*cobra.Command, []string) error { return bench.ServeWorker(os.Stdin, os.Stdout) }),
	}
}
