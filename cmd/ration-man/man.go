package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"ration/internal/cli"
)

// writePages writes all pages into a folder, which it creates if necessary.
func writePages(ref cli.Reference, folder string) error {
	root := ref.Root
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("making %s: %w", folder, err)
	}
	root.DisableAutoGenTag = true
	var write func(c *cobra.Command) error
	write = func(c *cobra.Command) error {
		if c != root && (!c.IsAvailableCommand() || c.IsAdditionalHelpTopicCommand()) {
			return nil
		}
		name := strings.ReplaceAll(c.CommandPath(), " ", "-") + ".1"
		page, date, err := manPage(ref, c)
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, name), page, 0o644)
		}
		if err == nil && c == root {
			err = os.WriteFile(filepath.Join(folder, "ration.7"), referencePage(ref, date), 0o644)
		}
		if err != nil {
			return fmt.Errorf("writing man page %s into %s: %w", name, folder, err)
		}
		for _, sub := range c.Commands() {
			if err := write(sub); err != nil {
				return err
			}
		}
		return nil
	}
	return write(root)
}

// manPage returns the page of a command, including the sections that apply to all commands, and its
// date.
func manPage(ref cli.Reference, c *cobra.Command) ([]byte, *time.Time, error) {
	header := &doc.GenManHeader{Section: "1", Source: "ration " + ref.Version, Manual: "ration"}
	var page bytes.Buffer
	if err := doc.GenMan(c, header, &page); err != nil {
		return nil, nil, err
	}
	top := c
	for top.HasParent() && top.Parent().HasParent() {
		top = top.Parent()
	}
	more := manSections(ref, top.Name())
	const seeAlso = ".SH SEE ALSO\n"
	text, others, found := strings.Cut(page.String(), seeAlso)
	if !found {
		others = "\n"
	} else {
		others = strings.TrimRight(others, "\n") + ", "
	}
	return []byte(strings.TrimRight(text, "\n") + "\n" + more + seeAlso + strings.TrimLeft(others, "\n") + "\\fBration(7)\\fP\n"), header.Date, nil
}

// manSections formats the sections that apply to a command and to all others.
func manSections(ref cli.Reference, command string) string {
	var out strings.Builder
	for _, s := range ref.Sections(command) {
		out.WriteString(manEntries(s.Title, s.Entries))
	}
	return out.String()
}

func manEntries(title string, entries []cli.Entry) string {
	var out strings.Builder
	fmt.Fprintf(&out, ".SH %s\n", title)
	for _, e := range entries {
		fmt.Fprintf(&out, ".TP\n\\fB%s\\fP\n%s\n", roff(e.Name), roff(e.Text))
	}
	return out.String()
}

// roff escapes a backslash, a hyphen, and a dot or an apostrophe at the beginning of a line.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}

// referencePage returns ration(7): the sections that apply to all commands.
func referencePage(ref cli.Reference, date *time.Time) []byte {
	var out strings.Builder
	fmt.Fprintf(&out, ".TH \"RATION\" \"7\" \"%s\" \"ration %s\" \"ration\"\n", date.Format("Jan 2006"), ref.Version)
	out.WriteString(".SH NAME\nration \\- words, sizes, variables, files and exit statuses of ration(1)\n")
	out.WriteString(manEntries("DESCRIPTION", ref.Words))
	out.WriteString(manSections(ref, "ration"))
	out.WriteString(".SH SEE ALSO\n\\fBration(1)\\fP, \\fBration\\-run(1)\\fP\n")
	return []byte(out.String())
}
