package cli

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// otherFlags are names that flags have in other tools. SuggestFor has those of commands.
var otherFlags = map[string][]string{
	"mem": {"memory", "limit", "gpu-mem"}, "fake-gpu": {"gpus"}, "stale": {"rm"}, "listen": {"port", "address"},
}

// similar returns the commands of cmd that are close to a mistyped name, by cobra's measure.
func similar(cmd *cobra.Command, name string) []string {
	cmd.SuggestionsMinimumDistance = min(2, (len(name)+1)/3) // with two of four letters changed it is another word
	found := cmd.SuggestionsFor(name)
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && swapped(name, c.Name()) {
			found = append(found, c.Name())
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// similarNames returns the names that are close to a mistyped one, by the same measure.
func similarNames(name string, of []string) []string {
	all := &cobra.Command{} // a command for each, because cobra compares only commands
	for _, n := range of {
		all.AddCommand(&cobra.Command{Use: n, Run: func(*cobra.Command, []string) {}})
	}
	return similar(all, name)
}

// swapped reports whether two neighbouring letters of a name are exchanged. By cobra's measure that is two mistakes.
func swapped(name, of string) bool {
	for i := 1; i < len(of) && len(name) == len(of); i++ {
		if name == of[:i-1]+of[i:i+1]+of[i-1:i]+of[i+1:] && name != of {
			return true
		}
	}
	return false
}

// unknownCommand returns an error that suggests the command that may be meant.
func unknownCommand(cmd *cobra.Command, name string) error {
	hint := fmt.Sprintf("see %s --help", cmd.CommandPath())
	if found := similar(cmd, name); len(found) > 0 {
		hint = "did you mean " + strings.Join(found, " or ") + "?"
	} else if _, err := exec.LookPath(name); err == nil && !cmd.HasParent() {
		hint = fmt.Sprintf("to start the program of that name: ration run --mem 10g -- %s", name)
	}
	return usageError("%q: no such command of %s (%s)", name, cmd.CommandPath(), hint)
}

// flagError returns a one-line error about a flag.
func flagError(cmd *cobra.Command, err error) error {
	var bad *pflag.InvalidValueError
	if errors.As(err, &bad) {
		if bad.GetFlag().Value.Type() == "duration" {
			return fmt.Errorf("--%s %q: not a time (use 30s, 10m or 2h)", bad.GetFlag().Name, bad.GetValue())
		}
		return fmt.Errorf("--%s %q: not a valid value (see %s --help)", bad.GetFlag().Name, bad.GetValue(), cmd.CommandPath())
	}
	var missing *pflag.NotExistError
	if errors.As(err, &missing) {
		return unknownFlag(cmd, missing)
	}
	return fmt.Errorf("%w (see %s --help)", err, cmd.CommandPath())
}

// unknownFlag returns an error that suggests the flag that may be meant.
func unknownFlag(cmd *cobra.Command, missing *pflag.NotExistError) error {
	name, dashes := missing.GetSpecifiedName(), "--"
	if missing.GetSpecifiedShortnames() != "" {
		dashes = "-"
	}
	if run, _, err := cmd.Find([]string{"run"}); err == nil && run != cmd && run.Flags().Lookup(name) != nil {
		return fmt.Errorf("--%s is a flag of ration run (as in ration run --mem 10g -- python train.py)", name)
	}
	flags := &cobra.Command{} // a command for each flag, because cobra compares only commands
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			flags.AddCommand(&cobra.Command{Use: f.Name, SuggestFor: otherFlags[f.Name], Run: func(*cobra.Command, []string) {}})
		}
	})
	hint := fmt.Sprintf("see %s --help", cmd.CommandPath())
	if found := similar(flags, name); len(found) > 0 {
		hint = "did you mean --" + strings.Join(found, " or --") + "?"
	}
	return fmt.Errorf("%s%s: no such flag of %s (%s)", dashes, name, cmd.CommandPath(), hint)
}

// newHelpCommand is cobra's help, except that an unknown topic is an error.
func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND | all]",
		Short: "Help about any command",
		Long:  "Print the help of ration, or of one of its commands. all lists all commands.",
		Example: `  ration help
  ration help all
  ration help run`,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
			var names []cobra.Completion
			if about, _, err := cmd.Root().Find(args); err == nil {
				for _, c := range about.Commands() {
					if c.IsAvailableCommand() && strings.HasPrefix(c.Name(), prefix) {
						names = append(names, cobra.CompletionWithDesc(c.Name(), c.Short))
					}
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && args[0] == "all" {
				printAllCommands(cmd.OutOrStdout(), cmd.Root())
				return nil
			}
			about, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return unknownCommand(cmd.Root(), args[0])
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}

// helpGroups are the commands that ration --help shows, in groups. ration help all lists the others too.
var helpGroups = []struct {
	title    string
	commands []string
}{
	{"Start here", []string{"learn", "doctor"}},
	{"Run programs, and see them", []string{"run", "ps", "top", "why", "limit", "wait", "stop"}},
	{"Share a machine with others", []string{"policy", "web", "report"}},
}

// groupCommands puts commands into the groups of the help. The others are left out of it.
func groupCommands(root *cobra.Command) {
	for _, g := range helpGroups {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title + ":"})
		for _, c := range root.Commands() {
			if slices.Contains(g.commands, c.Name()) {
				c.GroupID = g.title
			}
		}
	}
	before, rest, _ := strings.Cut(root.UsageTemplate(), "{{if not .AllChildCommandsHaveGroup}}")
	_, after, _ := strings.Cut(rest, "{{end}}{{end}}{{end}}{{end}}{{end}}")
	root.SetUsageTemplate(before + "\n\nMore commands: ration help all{{end}}{{end}}" + after)
}

// printAllCommands prints a line for each command.
func printAllCommands(out io.Writer, root *cobra.Command) {
	for _, c := range root.Commands() {
		if c.IsAvailableCommand() {
			fmt.Fprintf(out, "  %-*s  %s\n", root.NamePadding(), c.Name(), c.Short)
		}
	}
}
