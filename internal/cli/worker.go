package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"ration/internal/bench"
	"ration/internal/demo"
	"ration/internal/procgroup"
	"ration/internal/selftest"
)

// newWorkerCommand returns the command that the self-test, the benchmarks and the demo
// start as their worker processes.
func newWorkerCommand() *cobra.Command {
	return &cobra.Command{
		Use:                procgroup.Command,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE:               withStatus(func(_ *cobra.Command, args []string) error { return runWorker(args) }),
	}
}

func runWorker(args []string) error {
	roles := map[string]procgroup.Role{
		selftest.Role:       selftest.Work,
		selftest.VictimRole: selftest.Fall,
		demo.Role:           demo.Work,
	}
	for name, role := range bench.Roles {
		roles[name] = role
	}
	err := procgroup.Serve(args, roles)
	if errors.Is(err, procgroup.ErrUsage) {
		return statusError{err, ExitUsage}
	}
	return err
}
