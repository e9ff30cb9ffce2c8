package tui

import (
	"cmp"
	"strings"

	tea "charm.land/bubbletea/v2"

	"ration/internal/termtext"
)

// scroller is the number of lines of a page above the first shown one.
type scroller int

// press handles a key that scrolls, and reports whether it was one.
func (s *scroller) press(m *Model, key string) bool {
	switch key {
	case "pgup", "ctrl+b":
		*s -= scroller(m.height / 2)
	case "pgdown", "ctrl+f":
		*s += scroller(m.height / 2)
	case "home":
		*s = 0
	case "end":
		*s = 1 << 30
	default:
		return false
	}
	return true
}

// shown returns the lines that fit.
func (s *scroller) shown(lines []line, height int) []line {
	*s = scroller(max(0, min(int(*s), len(lines)-height)))
	return lines[*s:min(len(lines), int(*s)+height)]
}

// textPage is a page with text to read: help, or the findings.
type textPage struct {
	text   func(m *Model) []line
	scroll scroller
}

func (p *textPage) body(m *Model, height int) []line { return p.scroll.shown(p.text(m), height) }

func (p *textPage) press(m *Model, key string) tea.Cmd {
	switch {
	case key == "up":
		p.scroll--
	case key == "down":
		p.scroll++
	case key == "space":
		p.scroll.press(m, "pgdown")
	case !p.scroll.press(m, key):
		m.back()
	}
	return nil
}

func (p *textPage) choose(*Model, string) {}

func (p *textPage) hints(m *Model) []hint {
	return []hint{{m.theme.arrows, "more"}, {"any other key", "back"}}
}

// findingsText returns the findings, with what to do.
func (m *Model) findingsText() []line {
	lines := []line{m.rule("findings")}
	for _, f := range m.sample.Findings {
		lines = append(lines, m.labelled(m.theme.bad.Render("!")+" ", f.Text+" ("+f.Remedy+")", 2)...)
	}
	if len(m.sample.Findings) == 0 {
		lines = append(lines, m.paragraph("none: nothing is overbooked, and what the driver counts is what the jobs count", 2)...)
	}
	return lines
}

// helpText explains all keys, and the marks in a bar.
func (m *Model) helpText() []line {
	g := m.theme.glyphs
	lines := []line{{text: m.theme.title.Render("Keys")}}
	const width = 12
	entry := func(key, text string) {
		lines = append(lines, m.labelled("  "+termtext.PadRight(key, width), text, width+2)...)
	}
	for _, b := range overviewKeys() {
		if b.help == "" { // described together with the next binding
			continue
		}
		entry(cmp.Or(b.show, strings.Join(b.keys, ", ")), b.help)
	}
	entry("mouse", "the wheel moves, a click selects; another on a job shows all about it")
	lines = append(lines, line{}, line{text: m.theme.title.Render("Bars")})
	entry(g.bar.Full, "used: granted to processes at this moment")
	entry(g.limit, "the limit, beyond which nothing is granted; in the bar of a GPU, what is handed out")
	entry(g.peak, "the peak: the most that was ever granted at once")
	lines = append(lines, line{})
	for _, text := range []string{
		"A bar that exceeds its limit belongs to a job whose limit was lowered: it keeps what it holds, and new requests are refused until enough is returned.",
		"HANDED OUT is the limits of all jobs together, YOURS those of your own where no agent knows the others; OUTSIDE is held by processes that are in no job.",
		"COMPUTE is a share of the device's time, and a cap on it; TIME what was had of it lately; ~ marks averages of the driver's samples, which may be wrong by several points.",
		"A process or PID with ? is what a job says; the kernel does not confirm it, and it gets no signal.",
	} {
		lines = append(lines, m.paragraph(text, 0)...)
	}
	return lines
}
