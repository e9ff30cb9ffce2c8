package cli

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// What people type who know other tools, and what they find it under here.
var (
	otherCommands = map[string]string{
		"list": "ps", "ls": "ps", "status": "ps", "show": "ps", "jobs": "ps",
		"exec": "run", "start": "run", "launch": "run",
		"remove": "rm", "delete": "rm", "prune": "rm", "clean": "rm",
		"set": "limit", "update": "limit", "explain": "why", "check": "doctor",
		"log": "events", "logs": "events", "config": "policy", "user": "policy", "users": "policy", "monitor": "top", "watch": "top",
	}
	otherFlags = map[string]string{
		"m": "mem", "memory": "mem", "limit": "mem", "gpu-mem": "mem", "n": "name", "j": "json", "gpus": "fake-gpu", "rm": "stale",
		"V": "version", "p": "listen", "port": "listen", "address": "listen",
	}
)

// checkCommand finds a command that there is not before its flags are looked at: they
// would be called unknown, and they are not what is wrong.
func checkCommand(root *cobra.Command, args []string) error {
	i := slices.IndexFunc(args, func(arg string) bool { return !strings.HasPrefix(arg, "-") || arg == "--" })
	if i < 0 || args[i] == "--" || strings.HasPrefix(args[i], cobra.ShellCompRequestCmd) {
		return nil
	}
	if found, _, err := root.Find(args[i:]); err == nil && found != root {
		return nil
	}
	run, _, _ := root.Find([]string{"run"})
	for _, arg := range args[:i] { // a flag of ration run, without run
		name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if root.Flags().Lookup(name) == nil && root.PersistentFlags().Lookup(name) == nil && run.Flags().Lookup(name) != nil {
			return fmt.Errorf("--%s is a flag of ration run (as in ration run --mem 10g -- python train.py)", name)
		}
	}
	return unknownCommand(root, args[i])
}

// unknownCommand says that there is no such command, and which one may be meant.
func unknownCommand(cmd *cobra.Command, name string) error {
	hint := fmt.Sprintf("see %s --help", cmd.CommandPath())
	other, known := otherCommands[name]
	cmd.SuggestionsMinimumDistance = 2 // two letters that changed places
	if len(name) < 5 {
		cmd.SuggestionsMinimumDistance = 1 // two letters of four are another word
	}
	switch similar := cmd.SuggestionsFor(name); {
	case cmd.HasParent() || !known && name != "kill" && name != "stop":
		if len(similar) > 0 {
			hint = "did you mean " + strings.Join(similar, " or ") + "?"
		} else if _, err := exec.LookPath(name); err == nil && !cmd.HasParent() {
			hint = fmt.Sprintf("to start the program of that name: ration run --mem 10g -- %s", name)
		}
	case known:
		hint = "did you mean " + other + "?"
	default:
		hint = "ration ends no processes; kill does, and ration ps shows their PIDs"
	}
	return fmt.Errorf("%q: no such command of %s (%s)", name, cmd.CommandPath(), hint)
}

// unknownFlag says that there is no such flag, and which one may be meant.
func unknownFlag(cmd *cobra.Command, missing *pflag.NotExistError) error {
	name, dashes := missing.GetSpecifiedName(), "--"
	if missing.GetSpecifiedShortnames() != "" {
		dashes = "-"
	}
	meant := ""
	if f := cmd.Flags().Lookup(otherFlags[name]); f != nil {
		meant = f.Name
	} else if len(name) > 1 {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && (distance(name, f.Name) <= 2 || strings.HasPrefix(f.Name, name)) && (meant == "" || distance(name, f.Name) < distance(name, meant)) {
				meant = f.Name
			}
		})
	}
	hint := fmt.Sprintf("see %s --help", cmd.CommandPath())
	if meant != "" {
		hint = "did you mean --" + meant + "?"
	}
	return fmt.Errorf("%s%s: no such flag of %s (%s)", dashes, name, cmd.CommandPath(), hint)
}

// distance is how many letters must be changed, added or left out to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(diagonal+cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// newHelpCommand is cobra's help, for which a topic that there is not is an error.
func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Help about any command",
		Long:  "Print the help of ration, or of one of its commands.",
		Example: `  ration help
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
			about, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return unknownCommand(cmd.Root(), args[0])
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}
