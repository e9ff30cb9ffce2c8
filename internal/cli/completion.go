package cli

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ration/internal/job"
	"ration/internal/node"
	"ration/internal/usage"
	"ration/machine"
)

// Examples that Tab offers for the values of flags. Other values are valid too.
var (
	exampleSizes   = []string{"1g", "2g", "4g", "8g", "10g", "16g", "20g", "40g", "80g", "25%", "50%", "none"}
	exampleShares  = []string{"10%", "20%", "25%", "30%", "50%", "75%", "100%", "none"}
	exampleMachine = []string{"h200", "h200x2", "h200x8", "h100", "a100", "small", "small:512m"}
	exampleFilters = []string{"state=running", "state=idle", "state=asleep", "gpu=0", "name=", "user=", "command="}
	exampleFormats = []string{"'{{.job}}'", "'{{.job}} {{.state}}'", "'{{json .devices}}'"}
)

// completeFlags registers a completion for every flag of a command and of those below it. A test
// checks that none is missing.
func completeFlags(cmd *cobra.Command) {
	complete := flagCompletions()
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if c := complete[f.Name]; c != nil && f.Value.Type() != "bool" {
				_ = cmd.RegisterFlagCompletionFunc(f.Name, c) // fails only for a flag that does not exist
			}
		})
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(cmd)
}

// flagCompletions returns the completion of each flag, by its name.
func flagCompletions() map[string]cobra.CompletionFunc {
	complete := map[string]cobra.CompletionFunc{
		"mem": completeLimits(exampleSizes), "limit": completeLimits(exampleSizes),
		"compute": completeLimits(exampleShares), "compute-max": completeLimits(exampleShares),
		"compute-round": completeWords("5ms", "10ms", "20ms", "50ms"),
		"interval":      completeWords("250ms", "1s", "5s", "1m"), "count": completeWords("1", "10", "100"), "processes": completeWords("1", "8", "32"),
		"fake-gpu": completeWords(exampleMachine...), "format": completeWords(exampleFormats...),
		"name": completeNames, "device": completeDevices,
		"device-memory": completeWords("16Gi", "24Gi", "40Gi", "80Gi"), "device-class": completeWords("gpu.ration"),
		"kind": completeWords(machine.EventKinds...), "by": completeWords(usage.Ways...), "listen": completeListen, "on-escape": completeWords(onEscapeReport, onEscapeStop),
		"sleep-after": completeWords("10m", "30m", "1h"), "wake": completeWords("auto", "manual"), "busy": completeWords("2s", "10s", "1m"),
		"grace": completeWords("5s", "10s", "30s", "1m"), "timeout": completeWords("10m", "1h", "8h", "24h"), "since": completeWords("10m", "1h", "24h", "all"),
		"until": completeWords("10m", "1h", "24h", "today", "monday"), "idle-after": completeWords("10m", "30m", "1h", "0"), "devices": completeWords("1", "2", "all"),
		"label": completeWords("project="), "priority": completeWords("high", "normal", "low"), "wait": completeWords("10m", "30m", "1h", "8h"), "wait-alloc": completeWords("10s", "30s", "5m", "none"),
		"sort": completeWords(node.Sorts()...), "filter": completeWords(exampleFilters...), "user": completeUsers,
		"summary": cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault), // a file
		"region":  cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
		"config":  cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
		"output":  cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
		"fleet":   completeWords("@", "dns+", "dnssrv+"),
		"html":    cobra.FixedCompletions([]cobra.Completion{"html"}, cobra.ShellCompDirectiveFilterFileExt),
	}
	for _, name := range []string{"tls-cert", "tls-key", "token-file", "fleet-token", "ca"} {
		complete[name] = cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault)
	}
	return complete
}

// completeListen completes the address of the page or of the metrics, which may be empty.
func completeListen(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if cmd.Name() == "web" {
		return completeWords(defaultWebListen, "127.0.0.1:0")(cmd, args, prefix)
	}
	return completeWords(defaultListen, "none")(cmd, args, prefix)
}

// completeWords completes one of a few words.
func completeWords(words ...string) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return withPrefix(words, "", prefix), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// withPrefix returns the words that begin with a prefix, each after a text that stays.
func withPrefix(words []string, before, prefix string) (out []cobra.Completion) {
	for _, w := range words {
		if strings.HasPrefix(w, prefix) {
			out = append(out, before+w)
		}
	}
	return out
}

// completeLimits completes limits, including limits per device: the last part of 10g,1=20g.
func completeLimits(examples []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		at := strings.LastIndexAny(prefix, ",=") + 1
		before, last := prefix[:at], prefix[at:]
		found := withPrefix(examples, before, last)
		if _, err := strconv.ParseUint(last, 10, 64); err == nil && strings.HasSuffix(examples[0], "g") {
			for _, unit := range []string{"g", "m", "%"} { // any number is valid
				if !slices.Contains(found, before+last+unit) {
					found = append(found, before+last+unit)
				}
			}
		}
		return found, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// completeNames completes --name with a job to join; any other name is valid too.
func completeNames(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if join, err := cmd.Flags().GetBool("join"); err == nil && join {
		return completeJobs(1)(cmd, nil, prefix)
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// completeDevices completes the number of a device that the named job has.
func completeDevices(_ *cobra.Command, args []string, prefix string) (out []cobra.Completion, _ cobra.ShellCompDirective) {
	const none = cobra.ShellCompDirectiveNoFileComp
	if len(args) == 0 {
		return withPrefix([]string{"0", "1", "2", "3"}, "", prefix), none
	}
	j, err := lookUpJob(args[0], job.Find)
	if err != nil {
		return nil, none
	}
	for _, d := range node.ReadJob(j, node.Options{ReadOnly: true}).Devices {
		if n := strconv.Itoa(d.Device); strings.HasPrefix(n, prefix) {
			out = append(out, cobra.CompletionWithDesc(n, d.UUID))
		}
	}
	return out, none
}

// completeLimitArgs completes a job, and then a size.
func completeLimitArgs(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) == 1 {
		return completeLimits(exampleSizes)(cmd, nil, prefix)
	}
	return completeJobs(1)(cmd, args, prefix)
}

// completeCommand completes a program in PATH, and files after it.
func completeCommand(_ *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 || strings.Contains(prefix, "/") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	var names []cobra.Completion
	for _, folder := range filepath.SplitList(os.Getenv("PATH")) {
		entries, _ := os.ReadDir(cmp.Or(folder, ".")) // a folder that cannot be read has nothing to run
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), prefix) {
				continue
			}
			if st, err := os.Stat(filepath.Join(folder, e.Name())); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
				names = append(names, e.Name())
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
}

// bashWords splits the line for a bash without the package bash-completion. It ignores quotes,
// because no word that is completed here needs quotes before it.
const bashWords = `
# For a bash without the package bash-completion.
__ration_words()
{
    local line=${COMP_LINE:0:COMP_POINT}
    read -r -a words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    cword=$((${#words[@]} - 1))
    cur=${words[cword]}
    prev=${words[cword > 0 ? cword - 1 : 0]}
}
`

// completionCommand gives cobra's completion command our help text, and a bash script that works
// without the package bash-completion.
func completionCommand(c *cobra.Command) {
	c.Short = "Print a script that completes commands in a shell"
	c.Long = `Print a script for a shell that completes commands, flags, values, the names
of jobs, and after -- the command to run. The packages install these scripts.`
	c.Example = "  source <(ration completion bash)\n  ration completion bash > /etc/bash_completion.d/ration"
	c.Args, c.RunE = noArgs, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	for _, sub := range c.Commands() {
		if sub.Name() != "bash" {
			continue
		}
		sub.RunE = func(cmd *cobra.Command, _ []string) error {
			const theirs = `_get_comp_words_by_ref "$@" cur prev words cword`
			plain, err := cmd.Flags().GetBool("no-descriptions")
			if err != nil {
				return err
			}
			var script bytes.Buffer
			if err := cmd.Root().GenBashCompletionV2(&script, !plain); err != nil {
				return err
			}
			text := strings.Replace(script.String(), theirs, "if declare -F _get_comp_words_by_ref >/dev/null; then\n        "+theirs+
				"\n    else\n        __ration_words\n    fi", 1)
			text = strings.Replace(text, "\n__ration_init_completion()", bashWords+"\n__ration_init_completion()", 1)
			_, err = fmt.Fprint(cmd.OutOrStdout(), text)
			return err
		}
	}
}
