package main

import (
	"bytes"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"ration/internal/cli"
	"ration/internal/termtext"
)

// pageWidth is the number of columns of docs/commands.md.
const pageWidth = 100

// page is docs/commands.md while it is written.
type page struct {
	bytes.Buffer
	ref cli.Reference
}

// commandsPage returns docs/commands.md: the help of all commands, their JSON output, and the
// sections that apply to all of them.
func commandsPage(ref cli.Reference) []byte {
	p := &page{ref: ref}
	p.WriteString("<!-- make generate writes this page from the commands' own help (cmd/ration-man). -->\n\n# Commands\n\n")
	p.prose("What each command does, as ration COMMAND --help says it, and what it prints with --json. The packages have the same as man pages.")
	p.WriteString("| | |\n|---|---|\n")
	for _, c := range ref.Root.Commands() {
		if !c.Hidden {
			fmt.Fprintf(p, "| [%s](#ration-%s) | %s |\n", c.Name(), c.Name(), c.Short)
		}
	}
	p.WriteString("\n")
	p.entries("Words", ref.Words)
	for _, s := range ref.Sections("ration") {
		p.entries(map[string]string{"EXIT STATUS": "Exit statuses", "ENVIRONMENT": "Variables", "FILES": "Files"}[s.Title], s.Entries)
	}
	for _, c := range ref.Root.Commands() {
		p.command(c, "##")
	}
	return append(bytes.TrimRight(p.Bytes(), "\n"), '\n')
}

// command writes the section of a command and of its subcommands.
func (p *page) command(c *cobra.Command, heading string) {
	if c.Hidden {
		return
	}
	name := strings.TrimPrefix(c.CommandPath(), "ration ")
	fmt.Fprintf(p, "%s ration %s\n\n    %s\n\n", heading, name, c.UseLine())
	p.help(c.Long)
	if c.Example != "" {
		p.fence("sh", strings.ReplaceAll(strings.TrimPrefix(c.Example, "  "), "\n  ", "\n"))
	}
	if c.HasAvailableLocalFlags() {
		p.fence("text flags", strings.TrimRight(c.LocalFlags().FlagUsagesWrapped(pageWidth), "\n"))
	}
	if value, there := p.ref.Outputs[name]; there {
		p.WriteString("As JSON:\n\n" + jsonShape(reflect.TypeOf(value), name == "ps") + "\n\n")
	}
	if pages := p.ref.Pages[name]; len(pages) > 0 {
		links := make([]string, len(pages))
		for i, file := range pages {
			links[i] = fmt.Sprintf("[%s](%s)", strings.TrimSuffix(file, ".md"), file)
		}
		fmt.Fprintf(p, "More: %s.\n\n", strings.Join(links, ", "))
	}
	for _, sub := range c.Commands() {
		p.item(sub.CommandPath(), sub.Short)
	}
	if c.HasSubCommands() {
		p.WriteString("\n")
	}
	for _, sub := range c.Commands() {
		if c.Name() != "completion" && sub.Long != "" { // cobra's own texts say how to install a script
			p.command(sub, "###")
		}
	}
}

// entries writes a section of names with explanations.
func (p *page) entries(title string, entries []cli.Entry) {
	fmt.Fprintf(p, "## %s\n\n", title)
	for _, e := range entries {
		p.item(e.Name, e.Text)
	}
	p.WriteString("\n")
}

// item writes an item of a list, for a name or several.
func (p *page) item(names, text string) {
	text = "`" + strings.ReplaceAll(names, ", ", "`, `") + "`: " + markdown(text)
	p.WriteString("- " + strings.Join(termtext.Wrap(text, pageWidth-2), "\n  ") + "\n")
}

func (p *page) fence(kind, text string) { fmt.Fprintf(p, "```%s\n%s\n```\n\n", kind, text) }

// help writes a help text: it wraps paragraphs, and keeps indented lines.
func (p *page) help(text string) {
	var file []string
	for part := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		if strings.HasPrefix(part, "  ") {
			file = append(file, strings.ReplaceAll(strings.TrimPrefix(part, "  "), "\n  ", "\n"))
			continue
		}
		if file != nil {
			text, kind := strings.Join(file, "\n\n"), "text columns"
			if strings.Contains(text, " = ") {
				kind = "toml"
			}
			p.fence(kind, text)
			file = nil
		}
		p.prose(part)
	}
}

func (p *page) prose(text string) {
	p.WriteString(strings.Join(termtext.Wrap(markdown(strings.ReplaceAll(text, "\n", " ")), pageWidth), "\n") + "\n\n")
}

// code matches templates, flags, variables, and other text that Markdown would change.
var code = regexp.MustCompile(`(^|[ (])('\{\{[^']*'|\{\{[^}]*\}\}|--[a-z][a-z-]*|\$?\{?\b[A-Z]+(_[A-Z]+)+\b\S*|\S*[*<>{]\S*)`)

// markdown puts code into backticks.
func markdown(text string) string {
	return code.ReplaceAllStringFunc(text, func(s string) string {
		at := len(s) - len(strings.TrimLeft(s, " ("))
		end := len(strings.TrimRight(s, ".,;:)"))
		return s[:at] + "`" + s[at:end] + "`" + s[end:]
	})
}
