package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"ration/internal/bench"
	"ration/internal/demo"
	"ration/internal/procgroup"
	"ration/internal/selftest"
)

// worker is what the self-test, the benchmarks and the demo start more of.
func worker() *cobra.Command {
	roles := map[string]procgroup.Role{
		selftest.Role:       selftest.Work,
		selftest.VictimRole: selftest.Fall,
		demo.Role:           demo.Work,
	}
	for name, role := range bench.Roles {
		roles[name] = role
	}
	return &cobra.Command{
		Use:                procgroup.Command,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: does(func(_ *cobra.Command, args []string) error {
			err := procgroup.Serve(args, roles)
			if errors.Is(err, procgroup.ErrUsage) {
				return statusError{err, ExitUsage}
			}
			return err
		}),
	}
}
