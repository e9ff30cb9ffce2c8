package tui

import (
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"ration/internal/humanfmt"
	"ration/internal/node"
	"ration/internal/termtext"
)

// line is a line of a frame, with the target of a click on it.
type line struct {
	text   string
	target target
}

// target is a row of a table or of a list. The zero value means none.
type target struct {
	kind targetKind
	id   string
}

type targetKind int

const (
	noTarget targetKind = iota
	jobTarget
	processTarget
	itemTarget // an item of a page
)

// page draws the body of a frame.
type page interface {
	body(m *Model, height int) []line
	press(m *Model, key string) tea.Cmd
	hints(m *Model) []hint
	choose(m *Model, id string) // selects an item after a click
}

// hint is a key and its action, for the last line.
type hint struct{ key, action string }

// View returns the frame for bubbletea to draw.
func (m *Model) View() tea.View {
	v := tea.NewView(m.Frame())
	v.AltScreen = true
	if !m.NoMouse {
		v.MouseMode = tea.MouseModeCellMotion
	}
	return v
}

// Frame returns the text of the frame. It never has more lines or columns than the terminal.
func (m *Model) Frame() string {
	var texts []string
	for _, l := range m.lines() {
		texts = append(texts, strings.TrimRight(termtext.Truncate(l.text, m.width, ""), " "))
	}
	return strings.Join(texts, "\n")
}

// lines returns the lines of a frame: the status, the page, and keys or a dialog.
func (m *Model) lines() (lines []line) {
	if m.width < 1 || m.height < 1 {
		return nil
	}
	bottom := m.bottom()
	if m.height < 3 && m.dialog == nil {
		_, lines = m.jobLines(m.height)
		return lines[:min(len(lines), m.height)]
	}
	bottom = bottom[max(0, len(bottom)-m.height):]
	if height := m.height - len(bottom); height > 0 {
		lines = append(lines, line{text: m.statusLine()})
		body := m.page.body(m, height-1)
		lines = append(lines, body[:min(len(body), height-1)]...)
		for len(lines) < height {
			lines = append(lines, line{})
		}
	}
	for _, text := range bottom {
		lines = append(lines, line{text: text})
	}
	return lines
}

// bottom returns the last lines: a dialog, a message, or keys.
func (m *Model) bottom() []string {
	switch {
	case m.dialog != nil:
		return m.dialog.lines(m)
	case m.message.text != "":
		style := plain
		if m.message.bad {
			style = m.theme.bad
		}
		return m.say(m.message.text, style)
	}
	return []string{m.keyLine(m.page.hints(m), m.width)}
}

// say wraps a text for the last lines, in at most half of the frame.
func (m *Model) say(text string, style lipgloss.Style) []string {
	lines := wrap(text, m.width)
	lines = lines[:min(len(lines), max(1, m.height/2))]
	for i := range lines {
		lines[i] = style.Render(lines[i])
	}
	return lines
}

// statusLine is the first line of a frame.
func (m *Model) statusLine() string {
	processes, held := 0, uint64(0)
	all := m.jobs()
	for _, j := range all {
		processes += j.ProcessCount()
		held += node.Used(j)
	}
	const title = "ration top"
	right := m.sample.Time.In(m.zone).Format(time.TimeOnly)
	if m.paused {
		right = "paused at " + right
	}
	parts := []string{humanfmt.Plural(len(all), "job", "jobs")}
	if filter := strings.TrimSpace(strings.Join(append(slices.Clone(m.given), m.filter), " ")); filter != "" {
		parts = append(parts, "filter "+termtext.Printable(filter))
	}
	if m.user != "" {
		parts = append(parts, "user "+termtext.Printable(m.user))
	}
	parts = append(parts, humanfmt.Plural(processes, "process", "processes"), humanfmt.Bytes(held)+" held")
	if n := m.hiddenJobs(); n > 0 {
		parts = append(parts, fmt.Sprintf("%d ended", n))
	}
	width := m.width - len(title) - 2 - termtext.Width(right) - 1
	counts := joinFitting(parts, ", ", width)
	gap := strings.Repeat(" ", max(1, width-termtext.Width(counts)+1))
	if m.paused {
		right = m.theme.warn.Render(right)
	}
	return m.theme.title.Render(title) + "  " + counts + gap + right
}

// keyLine returns as many keys as fit.
func (m *Model) keyLine(hints []hint, width int) string {
	var parts []string
	for _, k := range hints {
		parts = append(parts, m.theme.bold.Render(k.key)+" "+k.action)
	}
	return joinFitting(parts, "  ", width)
}

// joinFitting joins as many parts as fit a width.
func joinFitting(parts []string, separator string, width int) (out string) {
	for i, part := range parts {
		if i > 0 {
			part = separator + part
		}
		if termtext.Width(out)+termtext.Width(part) > width {
			break
		}
		out += part
	}
	return out
}

// rule is a horizontal line with a title in it.
func (m *Model) rule(title string) line {
	title = m.truncate(title, m.width-6)
	fill := max(0, m.width-4-termtext.Width(title))
	return line{text: m.theme.faint.Render(strings.Repeat(m.theme.rule, 2)) + " " + m.theme.bold.Render(title) + " " +
		m.theme.faint.Render(strings.Repeat(m.theme.rule, fill))}
}

// paragraph wraps text to the width of the terminal, with an indent.
func (m *Model) paragraph(text string, indent int) (lines []line) {
	for _, part := range wrap(text, max(m.width-indent, 8)) {
		lines = append(lines, line{text: strings.Repeat(" ", indent) + part})
	}
	return lines
}

// labelled returns a paragraph with a label of width columns in its first line.
func (m *Model) labelled(label, text string, width int) []line {
	lines := m.paragraph(text, width)
	if len(lines) > 0 {
		lines[0].text = label + strings.TrimLeft(lines[0].text, " ")
	}
	return lines
}

// wrap breaks text into lines. It also breaks words that are wider than a line, because text
// outside the frame is not shown.
func wrap(text string, width int) (lines []string) {
	for _, line := range termtext.Wrap(termtext.Printable(text), width) {
		lines = append(lines, strings.Split(ansi.Hardwrap(line, max(1, width), true), "\n")...)
	}
	return lines
}

func (m *Model) truncate(text string, width int) string {
	return termtext.Truncate(text, max(0, width), m.theme.ellipsis)
}
