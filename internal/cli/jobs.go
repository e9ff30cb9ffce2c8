package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"ration/internal/job"
)

// completeJobs completes the names of up to n jobs; the arguments after them are
// no files either.
func completeJobs(n int) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if strings.Contains(begun, "/") {
			return nil, cobra.ShellCompDirectiveDefault // the path of a region
		}
		if len(args) >= n {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		jobs, err := job.List()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var names []cobra.Completion
	each:
		for _, j := range jobs {
			if j.Name == "" || !strings.HasPrefix(j.Name, begun) {
				continue
			}
			for _, given := range args {
				if given == j.Name {
					continue each
				}
			}
			names = append(names, j.Name)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// takes checks the number of a command's arguments, and says what belongs there.
func takes(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return usage("%s needs %s (see %s --help)", cmd.CommandPath(), what, cmd.CommandPath())
		case most >= 0 && len(args) > most:
			return usage("%q: %s takes %s and no more (see %s --help)", args[most], cmd.CommandPath(), what, cmd.CommandPath())
		}
		return nil
	}
}
