package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/cobra"

	"ration/check/expect"
	"ration/internal/job"
	"ration/internal/region"
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
	root := newRootCommand(a)
	completeFlags(root)
	for _, c := range root.Commands() {
		add(c)
	}
	return out
}

// Every command has a description and an example.
func TestCommandsHaveHelp(t *testing.T) {
	for _, c := range visibleCommands() {
		expect.True(t, c.Short != "" && !strings.HasSuffix(c.Short, "."),
			c.CommandPath(), "Short is", c.Short, "want a line without a full stop")
		long := c.Long
		for line := range strings.SplitSeq(long, "\n") {
			expect.True(t, len([]rune(line)) <= 80 || c.Parent().Name() == "completion", c.CommandPath(), "does not fit a terminal", line) // whose text is cobra's
		}
		if c.Parent().Name() != "ration" {
			continue // its parent has the description
		}
		expect.True(t, strings.HasSuffix(strings.TrimSpace(long), "."), c.CommandPath(), "Long ends in", long, "want sentences")
		expect.True(t, strings.HasPrefix(c.Example, "  ") && strings.Contains(c.Example, "ration "+c.Name()),
			c.CommandPath(), "Example is", c.Example, "want indented command lines")
	}
}

// A reader that has enough is no failure, and nothing is said about it.
func TestBrokenPipe(t *testing.T) {
	for _, args := range [][]string{{"help"}, {"version"}, {"--json", "version"}} {
		reader, writer, err := os.Pipe()
		expect.OK(t, err)
		reader.Close()
		var said strings.Builder
		cmd := exec.Command("ration", args...)
		cmd.Stdout, cmd.Stderr = writer, &said
		err = cmd.Run()
		writer.Close()
		expect.True(t, cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == 141 && said.Len() == 0,
			"ration", args, err, "and said", said.String())
	}
}

// In a locale without Unicode, nothing that is printed has any, but for JSON.
func TestASCII(t *testing.T) {
	t.Setenv("LC_ALL", "C")
	var got strings.Builder
	out := newTerminal(&got)
	out.printf("%s %s\n", out.bar(0.5, 4), "→ 3 µs")
	expect.OK(t, out.printJSON("µ"))
	want := "##.. > 3 us\n\"µ\"\n"
	expect.Equal(t, got.String(), want)
}

// A path may be named by another user, and come here by a pattern of the shell: nothing in
// it moves the cursor.
func TestNamesOfOthers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "\x1b]0;owned\x07\u009b2J\u202e\x7f\nforged")
	t.Setenv(job.EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	expect.OK(t, os.Mkdir(dir, 0o755))
	path := filepath.Join(dir, "region")
	r, err := region.Open(path, region.Options{})
	expect.OK(t, err)
	expect.OK(t, r.Close())
	for _, args := range [][]string{
		{"limit", path}, {"limit", path, "1g", "--device", "0"}, {"limit", path}, {"limit", path, "nonsense"}, {"ps", "--region", path}, {"why", path},
		{"ps", "--region", path, "--json"}, {"limit", path, "--json"}, {"rm", path, "--json"},
		{"rm", path}, {"rm", "--force", path}, {"rm", path}, {"limit", path}, {"ps", "--region", path},
	} {
		var stdout, stderr bytes.Buffer
		err := execute(args, &stdout, &stderr)
		printError(&stderr, err)
		expect.True(t, args[len(args)-1] != "--json" || json.Valid(stdout.Bytes()) && strings.Contains(stdout.String(), `\u009b2J\u202e\u007f`),
			args, stdout.String())
		for _, c := range stdout.String() + stderr.String() {
			if c != '\n' && !unicode.IsPrint(c) {
				t.Errorf("%q: %q reaches the terminal: %q, %q", args, c, stdout.String(), stderr.String())
				break
			}
		}
		for line := range strings.Lines(stdout.String() + stderr.String()) {
			expect.True(t, !strings.HasPrefix(strings.TrimPrefix(line, "ration: "), "forged"),
				args, "a path is two lines", stdout.String(), stderr.String())
		}
	}
}

// An error is a line, and errors that were joined are one each, whatever the names in them hold.
func TestMessages(t *testing.T) {
	path := "a\nration: b"
	plain, other := fmt.Errorf("opening %s: %w", path, fs.ErrNotExist), errors.New("other")
	for name, c := range map[string]struct {
		err  error
		want []string
	}{
		"plain":           {plain, []string{"opening a?ration: b: file does not exist"}},
		"joined":          {errors.Join(plain, other), []string{"opening a?ration: b: file does not exist", "other"}},
		"with a status":   {statusError{errors.Join(plain, other), ExitOpen}, []string{"opening a?ration: b: file does not exist", "other"}},
		"wrapped":         {fmt.Errorf("removing %s: %w (end it)", path, errors.Join(other, other)), []string{"removing a?ration: b: other", "other (end it)"}},
		"two in one line": {fmt.Errorf("%s: %w (%w)", path, fs.ErrNotExist, other), []string{"a?ration: b: file does not exist (other)"}},
		"one without any": {fmt.Errorf("%s: %w", path, errors.New("")), []string{"a?ration: b: "}},
	} {
		got := messages(c.err)
		expect.True(t, slices.Equal(got, c.want), name, got)
	}
}

// A command is made alone under the name by which it is called.
func TestCommandAlone(t *testing.T) {
	for _, c := range commands {
		made := newRootCommand(&app{}, c.name).Commands()
		expect.True(t, len(made) == 1 && made[0].Name() == c.name, c.name, "makes", made)
	}
	expect.True(t, len(newRootCommand(&app{}, "--json", "ps").Commands()) > len(commands), "behind a flag, commands are missing")
}
