package tui

import (
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/termtext"
)

// View returns the frame for bubbletea to draw.
func (m *Model) View() tea.View {
	v := tea.NewView(m.Frame())
	v.AltScreen = true
	return v
}

// Frame returns what the terminal shows: never more lines or columns than it has.
func (m *Model) Frame() string {
	var lines []string
	switch {
	case m.width < 1 || m.height < 1:
		return ""
	case m.height < 3:
		_, lines, _ = m.jobLines(m.width)
	default:
		lines = append([]string{m.statusLine()}, m.body(m.height-2)...)
		for len(lines) < m.height-1 {
			lines = append(lines, "")
		}
		lines = append(lines, m.keyLine())
	}
	lines = lines[:min(len(lines), m.height)]
	for i, line := range lines {
		lines[i] = strings.TrimRight(termtext.Truncate(line, m.width, ""), " ")
	}
	return strings.Join(lines, "\n")
}

// body returns the lines between the first and the last of a frame.
func (m *Model) body(height int) []string {
	switch {
	case m.showHelp:
		return m.helpLines()[:min(height, len(m.helpLines()))]
	case m.sample.Err != nil:
		return append([]string{""}, m.paragraph(m.sample.Err.Error())...)
	case len(m.sample.Jobs) == 0:
		return append([]string{""}, m.paragraph("There are no jobs in "+job.Folder()+
			". A job is shown here as soon as it starts. (ration demo shows one at work.)")...)
	}
	jobs, processes, events := m.layout(height)
	lines := m.jobSection(jobs)
	if processes > 0 {
		lines = append(lines, m.processSection(processes)...)
	}
	if events > 0 {
		for len(lines) < height-events {
			lines = append(lines, "")
		}
		lines = append(lines, m.rule("refusals and deaths"))
		lines = append(lines, m.eventLines(m.width, events-1)...)
		if len(m.events()) == 0 {
			lines = append(lines, m.theme.faint.Render("  none"))
		}
	}
	return lines
}

// Lines without which a section is left out.
const (
	minProcessLines = 4  // a rule, a header, two processes
	minBodyLines    = 12 // of the body, to have a section of events
)

// layout divides the height among the sections: first the jobs, then the processes,
// then the events, whose height does not change, so that nothing moves when one
// happens.
func (m *Model) layout(height int) (jobs, processes, events int) {
	jobs = 1
	for _, s := range m.sample.Jobs {
		jobs += max(1, len(s.Devices))
	}
	if height >= minBodyLines {
		events = min(max(height/4, 3), 10)
	}
	rest := height - events
	if jobs > rest/2 {
		jobs = max(rest/2, min(jobs, rest-minProcessLines-4), 2)
	}
	if processes = rest - jobs; processes < minProcessLines {
		jobs, processes = rest, 0
	}
	return jobs, processes, events
}

// jobSection returns the table of jobs, or the part of it around the selected job.
func (m *Model) jobSection(height int) []string {
	header, lines, selected := m.jobLines(m.width)
	room := height - 1
	if len(lines) > room {
		above := max(0, min(selected-room/2, len(lines)-room))
		below := len(lines) - room - above
		lines = lines[above : above+room]
		more := ""
		if above > 0 {
			more += fmt.Sprintf(" %s%d", m.theme.up, above)
		}
		if below > 0 {
			more += fmt.Sprintf(" %s%d", m.theme.down, below)
		}
		header = "  " + overlay(header[2:], "JOB"+more)
	}
	return append([]string{m.theme.faint.Render(header)}, lines...)
}

// overlay writes text over the blanks at the beginning of a header, if it fits.
func overlay(header, text string) string {
	if n := termtext.Width(text); n < len(header) && strings.TrimSpace(header[3:n]) == "" {
		return text + header[n:]
	}
	return header
}

// pageSize is how many processes are shown at a time.
func (m *Model) pageSize() int {
	_, processes, _ := m.layout(m.height - 2)
	return max(1, processes-2)
}

// processSection returns the table of processes, from the scroll position on.
func (m *Model) processSection(height int) []string {
	all := m.processRows()
	room := height - 2
	first := max(0, min(m.scroll, len(all)-room))
	shown := all[first:min(len(all), first+room)]
	title := "processes of all jobs"
	if i := m.selectedIndex(); i >= 0 && !m.allJobs {
		title = "processes of " + termtext.Printable(m.sample.Jobs[i].Title())
	}
	title += ", by " + m.sortBy.String()
	if len(all) > len(shown) {
		title += fmt.Sprintf(" %s %d-%d of %d", m.theme.dot, first+1, first+len(shown), len(all))
	}
	lines := []string{m.rule(title)}
	if len(all) == 0 {
		return append(lines, m.theme.faint.Render("  none"))
	}
	header, rows := m.processLines(m.width, all, shown)
	return append(append(lines, m.theme.faint.Render(header)), rows...)
}

// statusLine is the first line of a frame.
func (m *Model) statusLine() string {
	processes, held := 0, uint64(0)
	for _, s := range m.sample.Jobs {
		processes += len(s.Processes)
		for _, d := range s.Devices {
			held += d.Used
		}
	}
	left := m.theme.title.Render("ration top")
	counts := fmt.Sprintf("%s, %s, %s held", humanfmt.Plural(len(m.sample.Jobs), "job", "jobs"),
		humanfmt.Plural(processes, "process", "processes"), humanfmt.Bytes(held))
	right := m.sample.Time.In(m.zone).Format(time.TimeOnly)
	if m.paused {
		right = "paused at " + right
	}
	gap := m.width - len("ration top") - 2 - termtext.Width(counts) - termtext.Width(right)
	if gap < 1 {
		return left + "  " + right
	}
	if m.paused {
		right = m.theme.warn.Render(right)
	}
	return left + "  " + counts + strings.Repeat(" ", gap) + right
}

// keyLine is the last line of a frame: as many keys as there is room for.
func (m *Model) keyLine() string {
	if m.showHelp {
		return m.theme.faint.Render("any key: back")
	}
	pause := "pause"
	if m.paused {
		pause = "resume"
	}
	others := "all jobs"
	if m.allJobs {
		others = "one job"
	}
	line := ""
	for _, k := range []struct{ key, action string }{
		{"q", "quit"}, {"?", "help"}, {"s", "sort: " + m.sortBy.String()}, {m.theme.arrows, "job"}, {"a", others}, {"r", "reverse"}, {"space", pause},
	} {
		part := m.theme.bold.Render(k.key) + " " + k.action
		if termtext.Width(line)+2+termtext.Width(part) > m.width {
			break
		}
		line = strings.TrimLeft(line+"  "+part, " ")
	}
	return line
}

// rule is a horizontal line with a title in it.
func (m *Model) rule(title string) string {
	title = m.truncate(title, m.width-6)
	fill := max(0, m.width-4-termtext.Width(title))
	return m.theme.faint.Render(strings.Repeat(m.theme.rule, 2)) + " " + m.theme.bold.Render(title) + " " +
		m.theme.faint.Render(strings.Repeat(m.theme.rule, fill))
}

// paragraph wraps text to the width of the terminal.
func (m *Model) paragraph(text string) []string { return wrap(text, max(m.width-2, 8)) }

// wrap breaks text into lines, and words that are wider than a line too: what does not
// fit a frame is not shown.
func wrap(text string, width int) (lines []string) {
	for _, line := range termtext.Wrap(termtext.Printable(text), width) {
		lines = append(lines, strings.Split(ansi.Hardwrap(line, width, true), "\n")...)
	}
	return lines
}

func (m *Model) truncate(text string, width int) string {
	return termtext.Truncate(text, width, m.theme.ellipsis)
}
