package tui

import (
	"fmt"
	"strings"

	tea "charm.land/bubbletea/v2"

	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/termtext"
)

// overview is the page with the whole machine: findings, devices, jobs, processes, and
// refusals and deaths.
type overview struct{}

func (overview) body(m *Model, height int) []line {
	if m.sample.Err != nil {
		return append([]line{{}}, m.paragraph(m.sample.Err.Error(), 0)...)
	}
	h := m.layout(height)
	lines := m.topLines(h.top)
	switch {
	case len(m.jobs()) == 0:
		lines = append(append(lines, line{}), m.paragraph(m.nothing(), 0)...)
	case h.jobs > 0:
		header, rows := m.jobLines(h.jobs - 1)
		lines = append(append(lines, header), rows...)
	}
	if h.processes > 0 {
		lines = append(lines, m.processSection(h.processes)...)
	}
	if h.events > 0 {
		for len(lines) < height-h.events {
			lines = append(lines, line{})
		}
		lines = append(append(lines, m.rule("refusals and deaths")), m.linesOf(m.events())...)
	}
	return lines[:min(len(lines), height)]
}

// nothing says why no job is shown.
func (m *Model) nothing() string {
	ended := ""
	if n := m.hiddenJobs(); n > 0 {
		ended = " " + humanfmt.Plural(n, "job has ended", "jobs have ended") + " (e shows " + humanfmt.ItOrThem(n) + ")."
	}
	switch {
	case m.searches():
		_, text := m.splitFilter()
		return fmt.Sprintf("No job has %q in its name, user, state or command, or those of its processes. Esc shows all again.%s", text, ended)
	case m.filter != "" || m.given != nil:
		return "No job has " + strings.Join(m.selection().Filters, " and ") + ". Esc shows all again." + ended
	case m.user != "":
		return "Nothing of " + m.user + " runs. Esc shows all users again." + ended
	case len(m.sample.Jobs) > 0:
		return "Nothing runs in " + job.Folder() + "." + ended
	}
	return "There are no jobs in " + job.Folder() + ". A job is shown here as soon as it starts. (ration demo shows one at work.)"
}

// heights are the lines of each section of the overview; 0 leaves it out.
type heights struct{ top, jobs, processes, events int }

// A section with fewer lines is left out.
const (
	minProcessLines = 4  // a rule, a header, two processes
	minBodyLines    = 12 // of the body, to show a section of events
)

// layout divides the height among the sections: first the machine and the jobs, then the processes,
// then the events. The height of the events is fixed, so that nothing moves when an event happens.
func (m *Model) layout(height int) (h heights) {
	h.top = len(m.topLines(max(2, height/3)))
	h.jobs = 1 + len(m.jobRows())
	if height >= minBodyLines {
		h.events = min(max(height/4, 3), 10)
	}
	rest := height - h.events - h.top
	if h.jobs == 1 { // the line that says that there are no jobs
		h.jobs = 4
	}
	if h.jobs > rest/2 {
		h.jobs = max(rest/2, min(h.jobs, rest-minProcessLines-4), 2)
	}
	if h.processes = rest - h.jobs; h.processes < minProcessLines || len(m.jobs()) == 0 && len(m.processRows()) == 0 {
		h.jobs, h.processes = max(2, rest), 0
		if m.focus == processesTable {
			h.jobs, h.processes = 0, h.jobs
		}
	}
	return h
}

// topLines returns at most most lines with the findings and the devices.
func (m *Model) topLines(most int) (lines []line) {
	gpus := 0
	if n := len(m.sample.Devices); n > 0 {
		grid := (n + m.gridCells() - 1) / m.gridCells()
		gpus = min(n+1, max(1, most*2/3, most-2, min(grid, most-1)))
	}
	lines = m.findingLines(min(most-gpus, 3))
	return append(lines, m.gpuLines(most-len(lines))...)
}

func (overview) press(m *Model, key string) tea.Cmd {
	for _, b := range overviewKeys() {
		if b.has(key) {
			return b.do(m)
		}
	}
	return nil
}

func (overview) choose(*Model, string) {}

func (overview) hints(m *Model) []hint {
	pause := "pause"
	if m.paused {
		pause = "resume"
	}
	table, _ := m.focused()
	all := []hint{{"q", "quit"}, {"?", "help"}, {"/", "filter"}, {"Enter", "details"}, {"l", "limit"}, {"x", "end"}, {"k", "signal"}, {"s", "sort: " + table.Sort},
		{"t", "tree"}, {"u", "users"}, {"e", "ended"}, {"space", pause}}
	if m.filter != "" || m.user != "" || m.given != nil {
		return append([]hint{{"Esc", "show all"}}, all...)
	}
	return all
}

// processSection returns the table of processes, around the selected one.
func (m *Model) processSection(height int) []line {
	all := m.processRows()
	room := height - 2
	first, last := window(len(all), room, m.process.at)
	title := "processes of all jobs"
	if j := m.jobAt(m.job.id); j != nil && !m.allJobs {
		title = "processes of " + termtext.Printable(j.Title())
	}
	title += ", by " + m.Processes.Sort
	if m.Tree {
		title += ", as a tree"
	}
	if len(all) > last-first {
		title += fmt.Sprintf(" %s %d-%d of %d", m.theme.dot, first+1, last, len(all))
	}
	lines := []line{m.rule(title)}
	if len(all) == 0 {
		return append(lines, line{text: m.theme.faint.Render("  none")})
	}
	header, rows := m.processLines(all, all[first:last], m.focus == processesTable)
	return append(append(lines, header), rows...)
}
