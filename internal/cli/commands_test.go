package cli

import (
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// visibleCommands returns all commands that the help lists.
func visibleCommands() (out []*cobra.Command) {
	a := &app{out: newTerminal(io.Discard), err: newTerminal(io.Discard)}
	var add func(*cobra.Command)
	add = func(c *cobra.Command) {
		if c.Hidden {
			return
		}
		out = append(out, c)
		for _, sub := range c.Commands() {
			add(sub)
		}
	}
	for _, c := range newRootCommand(a).Commands() {
		add(c)
	}
	return out
}

// Every command has a description and an example.
func TestCommandsHaveHelp(t *testing.T) {
	for _, c := range visibleCommands() {
		if c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: Short is %q, want a line without a full stop", c.CommandPath(), c.Short)
		}
		long := c.Long
		if c.Parent().Name() != "ration" {
			continue // its parent has the description
		}
		if !strings.HasSuffix(strings.TrimSpace(long), ".") {
			t.Errorf("%s: Long ends in %q, want sentences", c.CommandPath(), long)
		}
		if !strings.HasPrefix(c.Example, "  ") || !strings.Contains(c.Example, "ration "+c.Name()) {
			t.Errorf("%s: Example is %q, want indented command lines", c.CommandPath(), c.Example)
		}
		for line := range strings.SplitSeq(long, "\n") {
			if len([]rune(line)) > 80 {
				t.Errorf("%s: does not fit a terminal: %q", c.CommandPath(), line)
			}
		}
	}
}

// docs/commands.md has every command, its flags, and every exit status.
func TestCommandsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/commands.md")
	if err != nil {
		t.Fatal(err)
	}
	parts := map[string]string{}
	for part := range strings.SplitSeq(string(page), "\n## ") {
		title, text, _ := strings.Cut(part, "\n")
		parts[title] = text
	}
	for _, c := range visibleCommands() {
		if c.Parent().Name() != "ration" {
			continue
		}
		text, there := parts["ration "+c.Name()]
		if !there {
			t.Errorf("docs/commands.md has no section about ration %s", c.Name())
			continue
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Name != "help" && !regexp.MustCompile(`--`+f.Name+`\b`).MatchString(text) {
				t.Errorf("docs/commands.md: the section about ration %s does not mention --%s", c.Name(), f.Name)
			}
		})
	}
	for _, status := range []string{"0", "1", "2", "3", "126", "127", "130"} {
		if !strings.Contains(parts["Exit statuses"], "\n| "+status+" |") {
			t.Errorf("docs/commands.md does not say what exit status %s means", status)
		}
	}
}
