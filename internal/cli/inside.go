package cli

import (
	"os/signal"

	"github.com/spf13/cobra"

	"ration/internal/launch"
)

// newInsideCommand returns the command that ration run starts in a new mount namespace.
func newInsideCommand() *cobra.Command {
	return &cobra.Command{
		Use:                launch.Inside,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE:               withStatus(func(_ *cobra.Command, args []string) error { return runInside(args) }),
	}
}

func runInside(args []string) error {
	if len(args) != 1 {
		return usageError("%s: this command is for ration itself, not for people", launch.Inside)
	}
	signal.Reset()
	launch.RestoreIgnoredSignals()
	return withLaunchStatus(launch.Enter(args[0]))
}
