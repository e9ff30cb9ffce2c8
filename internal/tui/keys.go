package tui

import (
	tea "charm.land/bubbletea/v2"
)

// help says what the keys do, and what the marks in a bar mean.
func (m *Model) helpLines() []string {
	g := m.look.glyphs
	lines := []string{m.look.title.Render("Keys")}
	for _, k := range []struct{ keys, what string }{
		{g.arrows + ", tab", "another job"},
		{"a", "processes of all jobs, or of the one that is marked"},
		{"s", "sort by another key: bytes, PID, name, when it joined"},
		{"r", "the other way round"},
		{"PgUp, PgDn", "more processes"},
		{"space", "stand still, and go on"},
		{"?", "this page"},
		{"q", "quit"},
	} {
		lines = append(lines, "  "+pad(k.keys, -16)+k.what)
	}
	lines = append(lines, "", m.look.title.Render("Bars"))
	for _, k := range []struct{ mark, what string }{
		{g.full, "used: granted to processes at this moment"},
		{g.limit, "the limit: nothing is granted beyond it"},
		{g.peak, "the peak: the most that was ever granted at once"},
	} {
		lines = append(lines, "  "+pad(k.mark, -16)+k.what)
	}
	lines = append(lines, "",
		"A bar that is longer than its limit belongs to a job whose limit was lowered:",
		"what it holds stays its own, and it gets nothing new until it is below.")
	return lines
}

// press does what a key is for.
func (m *Model) press(key string) tea.Cmd {
	if m.help && key != "ctrl+c" && key != "ctrl+z" {
		m.help = false
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
		m.help = true
	case "down", "j", "tab":
		m.move(+1, key == "tab")
	case "up", "k", "shift+tab":
		m.move(-1, key == "shift+tab")
	case "a":
		m.all, m.scroll = !m.all, 0
	case "s":
		m.key, m.scroll = (m.key+1)%sortKeys, 0
	case "r":
		m.reverse, m.scroll = !m.reverse, 0
	case "space":
		m.paused = !m.paused
	case "pgdown", "ctrl+f":
		m.scroll += m.page()
	case "pgup", "ctrl+b":
		m.scroll -= m.page()
	case "home":
		m.scroll = 0
	}
	m.scroll = max(0, min(m.scroll, len(m.entries())-m.page()))
	return nil
}

// move selects another job; round says whether the first one follows the last.
func (m *Model) move(by int, round bool) {
	n := len(m.sample.Jobs)
	if n == 0 {
		return
	}
	to := m.at() + by
	if round {
		to = (to + n) % n
	}
	m.selected, m.all, m.scroll = m.sample.Jobs[max(0, min(to, n-1))].Path, false, 0
}
