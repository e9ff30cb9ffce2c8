package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"ration/internal/job"
	"ration/internal/node"
	"ration/internal/termtext"
	"ration/machine"
)

// noArgs checks that a command has no arguments, or that a subcommand exists.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if !cmd.HasAvailableSubCommands() {
		return fmt.Errorf("%q: %s takes no arguments (see %s --help)", args[0], cmd.CommandPath(), cmd.CommandPath())
	}
	return unknownCommand(cmd, args[0])
}

// argCount checks the number of a command's arguments; what describes them in the error. A negative
// most means no upper bound.
func argCount(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return usageError("%s needs %s (see %s --help)", cmd.CommandPath(), what, cmd.CommandPath())
		case most >= 0 && len(args) > most:
			return usageError("%q: %s takes %s and no more (see %s --help)", args[most], cmd.CommandPath(), what, cmd.CommandPath())
		}
		return nil
	}
}

// completeJobs completes names of jobs, for a command with at most n of them.
func completeJobs(n int) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) >= n {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		jobs, err := job.List()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var names []cobra.Completion
		add := func(name string) {
			if strings.HasPrefix(name, prefix) && !slices.Contains(args, name) && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		for _, j := range jobs {
			if name := job.ShownName(j.Name, j.Path); name != "" {
				add(name)
			}
		}
		for _, name := range otherUsersJobs() {
			add(name)
		}
		if strings.Contains(prefix, "/") && len(names) == 0 {
			return nil, cobra.ShellCompDirectiveDefault // the path of a region
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// otherUsersJobs returns the names of other users' jobs, for root. It stops after
// completionTimeout.
func otherUsersJobs() (names []string) {
	if !job.AllUsers() {
		return nil
	}
	read := make(chan machine.Machine, 1)
	go func() {
		m, _ := node.Jobs()
		read <- m
	}()
	select {
	case m := <-read:
		for i := range m.Jobs {
			if j := &m.Jobs[i]; j.Name != "" && !node.IsOwn(j) {
				names = append(names, termtext.Printable(ownerAndName(j)))
			}
		}
	case <-time.After(completionTimeout):
	}
	slices.Sort(names)
	return slices.Compact(names)
}

const completionTimeout = time.Second
