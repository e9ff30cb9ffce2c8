package tui

import (
	"fmt"
	"regexp"
	"strings"
	"time"
	uni "unicode"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"ration/internal/humanfmt"
	"ration/internal/job"
)

// View is the frame as the program draws it.
func (m *Model) View() tea.View {
	v := tea.NewView(m.Frame())
	v.AltScreen = true
	return v
}

// Frame is what the terminal shows: never more lines or columns than it has.
func (m *Model) Frame() string {
	var lines []string
	switch {
	case m.width < 1 || m.height < 1:
		return ""
	case m.height < 3:
		_, lines, _ = m.jobLines(m.width)
	default:
		lines = append([]string{m.headLine()}, m.body(m.height-2)...)
		for len(lines) < m.height-1 {
			lines = append(lines, "")
		}
		lines = append(lines, m.keyLine())
	}
	lines = lines[:min(len(lines), m.height)]
	for i, line := range lines {
		lines[i] = strings.TrimRight(ansi.Truncate(line, m.width, ""), " ")
	}
	return strings.Join(lines, "\n")
}

// body is all between the first line and the last.
func (m *Model) body(height int) []string {
	switch {
	case m.help:
		return m.helpLines()[:min(height, len(m.helpLines()))]
	case m.sample.Err != nil:
		return append([]string{""}, m.paragraph(m.sample.Err.Error())...)
	case len(m.sample.Jobs) == 0:
		return append([]string{""}, m.paragraph("No job has anything here: there is no region in "+job.Folder()+
			". It will be shown here as soon as there is one. (ration demo shows one at work.)")...)
	}
	jobs, processes, news := m.rooms(height)
	lines := m.jobPart(jobs)
	if processes > 0 {
		lines = append(lines, m.processPart(processes)...)
	}
	if news > 0 {
		for len(lines) < height-news {
			lines = append(lines, "")
		}
		lines = append(lines, m.rule("refusals and deaths"))
		lines = append(lines, m.newsLines(m.width, news-1)...)
		if len(m.news()) == 0 {
			lines = append(lines, m.look.faint.Render("  none"))
		}
	}
	return lines
}

// Rows that a part needs to be worth having.
const (
	leastProcesses = 4  // a rule, titles, two processes
	leastBody      = 12 // below it there is no room for news
)

// rooms divides the height: first the jobs, then who uses them, then the news.
// The news keep their place, so that nothing jumps when something happens.
func (m *Model) rooms(height int) (jobs, processes, news int) {
	jobs = 1
	for _, s := range m.sample.Jobs {
		jobs += max(1, len(s.Devices))
	}
	if height >= leastBody {
		news = min(max(height/4, 3), 10)
	}
	rest := height - news
	if jobs > rest/2 {
		jobs = max(rest/2, min(jobs, rest-leastProcesses-4), 2)
	}
	if processes = rest - jobs; processes < leastProcesses {
		jobs, processes = rest, 0
	}
	return jobs, processes, news
}

// jobPart is the bars, around the selected one where there is no room for all.
func (m *Model) jobPart(height int) []string {
	title, lines, at := m.jobLines(m.width)
	room := height - 1
	if len(lines) > room {
		from := max(0, min(at-room/2, len(lines)-room))
		above, below := from, len(lines)-room-from
		lines = lines[from : from+room]
		more := ""
		if above > 0 {
			more += fmt.Sprintf(" %s%d", m.look.up, above)
		}
		if below > 0 {
			more += fmt.Sprintf(" %s%d", m.look.down, below)
		}
		title = "  " + overlay(title[2:], "JOB"+more)
	}
	return append([]string{m.look.faint.Render(title)}, lines...)
}

// overlay writes text over the blanks at the beginning of a title.
func overlay(title, text string) string {
	if n := cells(text); n < len(title) && strings.TrimSpace(title[3:n]) == "" {
		return text + title[n:]
	}
	return title
}

// page is how many processes are shown at a time.
func (m *Model) page() int {
	_, processes, _ := m.rooms(m.height - 2)
	return max(1, processes-2)
}

// processPart is the processes, as many as there is room for.
func (m *Model) processPart(height int) []string {
	all := m.entries()
	room := height - 2
	from := max(0, min(m.scroll, len(all)-room))
	some := all[from:min(len(all), from+room)]
	what := "processes of all jobs"
	if i := m.at(); i >= 0 && !m.all {
		what = "processes of " + printable(m.sample.Jobs[i].Title())
	}
	what += ", by " + m.key.String()
	if len(all) > len(some) {
		what += fmt.Sprintf(" %s %d-%d of %d", m.look.dot, from+1, from+len(some), len(all))
	}
	lines := []string{m.rule(what)}
	if len(all) == 0 {
		return append(lines, m.look.faint.Render("  none"))
	}
	title, rows := m.processLines(m.width, all, some)
	return append(append(lines, m.look.faint.Render(title)), rows...)
}

// headLine is the first line.
func (m *Model) headLine() string {
	processes, held := 0, uint64(0)
	for _, s := range m.sample.Jobs {
		processes += len(s.Processes)
		for _, d := range s.Devices {
			held += d.Used
		}
	}
	left := m.look.title.Render("ration top")
	counts := fmt.Sprintf("%s, %s, %s held", count(len(m.sample.Jobs), "job"), countEs(processes, "process"), humanfmt.Bytes(held))
	right := m.sample.At.In(m.zone).Format(time.TimeOnly)
	if m.paused {
		right = "paused at " + right
	}
	gap := m.width - cells("ration top") - 2 - cells(counts) - cells(right)
	if gap < 1 {
		return left + "  " + right
	}
	if m.paused {
		right = m.look.near.Render(right)
	}
	return left + "  " + counts + strings.Repeat(" ", gap) + right
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func countEs(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ses", n, what)
}

// keyLine is the last line: what can be done, as far as there is room.
func (m *Model) keyLine() string {
	if m.help {
		return m.look.faint.Render("any key: back")
	}
	pause := "pause"
	if m.paused {
		pause = "go on"
	}
	others := "all jobs"
	if m.all {
		others = "one job"
	}
	line := ""
	for _, k := range []struct{ key, what string }{
		{"q", "quit"}, {"?", "help"}, {"s", "sort: " + m.key.String()}, {m.look.arrows, "job"}, {"a", others}, {"r", "reverse"}, {"space", pause},
	} {
		part := m.look.strong.Render(k.key) + " " + k.what
		if cells(line)+2+cells(part) > m.width {
			break
		}
		line = strings.TrimLeft(line+"  "+part, " ")
	}
	return line
}

// rule is a line with a title in it.
func (m *Model) rule(title string) string {
	title = m.cut(title, m.width-6)
	fill := max(0, m.width-4-cells(title))
	return m.look.faint.Render(strings.Repeat(m.look.rule, 2)) + " " + m.look.strong.Render(title) + " " +
		m.look.faint.Render(strings.Repeat(m.look.rule, fill))
}

// paragraph breaks text to the width of the terminal.
func (m *Model) paragraph(text string) []string { return wrap(text, max(m.width-2, 8)) }

// together are blanks at which no line should break: in 4 GiB, and before (4711).
var together = regexp.MustCompile(` ([KMGTPE]?i?B\b|\(\d+\))`)

// wrap breaks text into lines, at blanks only: names have hyphens.
func wrap(text string, width int) (lines []string) {
	const glue = "\x00" // which printable text has none of
	line := ""
	for word := range strings.SplitSeq(together.ReplaceAllString(printable(text), glue+"${1}"), " ") {
		word = strings.ReplaceAll(word, glue, " ")
		if line != "" && cells(line)+1+cells(word) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
		for cells(line) > width {
			head := ansi.Truncate(line, width, "")
			lines, line = append(lines, head), line[len(head):]
		}
	}
	return append(lines, line)
}

// cells is how many columns text takes.
func cells(text string) int { return ansi.StringWidth(text) }

// pad fills text up to a width; to the right of it where that is negative.
func pad(text string, width int) string {
	fill := strings.Repeat(" ", max(0, max(width, -width)-cells(text)))
	if width < 0 {
		return text + fill
	}
	return fill + text
}

func (m *Model) cut(text string, width int) string {
	return ansi.Truncate(text, max(width, 0), m.look.cut)
}

// printable keeps a name that somebody else chose from moving the cursor.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if uni.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}
