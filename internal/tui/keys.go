package tui

import (
	tea "charm.land/bubbletea/v2"

	"ration/internal/termtext"
)

// helpLines explain the keys and the marks in a bar.
func (m *Model) helpLines() []string {
	g := m.theme.glyphs
	lines := []string{m.theme.title.Render("Keys")}
	for _, k := range []struct{ keys, action string }{
		{g.arrows + ", tab", "select another job"},
		{"a", "show the processes of all jobs, or of the selected one"},
		{"s", "sort by another key: bytes, PID, name, when it joined"},
		{"r", "reverse the order"},
		{"PgUp, PgDn", "show more processes"},
		{"space", "pause, and resume"},
		{"?", "this page"},
		{"q", "quit"},
	} {
		lines = append(lines, "  "+termtext.PadRight(k.keys, 16)+k.action)
	}
	lines = append(lines, "", m.theme.title.Render("Bars"))
	for _, k := range []struct{ mark, meaning string }{
		{g.bar.Full, "used: granted to processes at this moment"},
		{g.limit, "the limit: nothing is granted beyond it"},
		{g.peak, "the peak: the most that was ever granted at once"},
	} {
		lines = append(lines, "  "+termtext.PadRight(k.mark, 16)+k.meaning)
	}
	lines = append(lines, "",
		"A bar that exceeds its limit belongs to a job whose limit was lowered: it",
		"keeps what it holds, and new requests are refused until enough is returned.",
		"COMPUTE is a share of the device's time, and a cap on it; ~ marks averages of",
		"the driver's samples, which may be wrong by several points.",
		"? marks what only a job's own file says; the kernel does not confirm it.")
	return lines
}

// pressKey handles a key.
func (m *Model) pressKey(key string) tea.Cmd {
	if m.showHelp && key != "ctrl+c" && key != "ctrl+z" {
		m.showHelp = false
		if key == "q" || key == "esc" || key == "?" || key == "h" {
			return nil
		}
	}
	switch key {
	case "q", "esc", "ctrl+c":
		return tea.Quit
	case "ctrl+z":
		return tea.Suspend
	case "?", "h":
		m.showHelp = true
	case "down", "j", "tab":
		m.moveSelection(+1, key == "tab")
	case "up", "k", "shift+tab":
		m.moveSelection(-1, key == "shift+tab")
	case "a":
		m.allJobs, m.scroll = !m.allJobs, 0
	case "s":
		m.sortBy, m.scroll = (m.sortBy+1)%sortKeys, 0
	case "r":
		m.reverse, m.scroll = !m.reverse, 0
	case "space":
		m.paused = !m.paused
	case "pgdown", "ctrl+f":
		m.scroll += m.pageSize()
	case "pgup", "ctrl+b":
		m.scroll -= m.pageSize()
	case "home":
		m.scroll = 0
	}
	m.scroll = max(0, min(m.scroll, len(m.processRows())-m.pageSize()))
	return nil
}

// moveSelection selects another job. With wrapAround the first follows the last.
func (m *Model) moveSelection(by int, wrapAround bool) {
	n := len(m.sample.Jobs)
	if n == 0 {
		return
	}
	to := m.selectedIndex() + by
	if wrapAround {
		to = (to + n) % n
	}
	m.selected, m.allJobs, m.scroll = m.sample.Jobs[max(0, min(to, n-1))].Path, false, 0
}
