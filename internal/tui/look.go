package tui

import (
	"strings"

	"charm.land/lipgloss/v2"
)

// Look is how frames are drawn: with which characters, and in which styles.
type Look struct {
	glyphs
	styles
}

// glyphs are the characters that a frame has beyond letters and digits.
type glyphs struct {
	full, empty        string
	parts              []string // of a full one, in equal steps
	limit, peak        string   // marks in a bar
	here, rule, cut    string
	down, up           string // orders of sorting, and directions in which there is more
	arrows, dot, times string
}

var (
	unicode = glyphs{
		full: "█", empty: "·", parts: strings.Split("▏▎▍▌▋▊▉", ""), limit: "┃", peak: "│",
		here: "▸", rule: "─", cut: "…", down: "▼", up: "▲", arrows: "↑↓", dot: "·", times: "×",
	}
	ascii = glyphs{
		full: "#", empty: ".", limit: "|", peak: ":",
		here: ">", rule: "-", cut: "~", down: "v", up: "^", arrows: "up/down", dot: "-", times: "x",
	}
)

// styles are those of a frame. Colours are the terminal's own sixteen, which its
// user has chosen to be readable.
type styles struct {
	title, faint, strong, good, near, bad lipgloss.Style
}

var (
	plain    = lipgloss.NewStyle()
	coloured = styles{
		title: plain.Bold(true).Foreground(lipgloss.Cyan), faint: plain.Faint(true), strong: plain.Bold(true),
		good: plain.Foreground(lipgloss.Green), near: plain.Foreground(lipgloss.Yellow), bad: plain.Foreground(lipgloss.Red),
	}
	// colourless says by weight what cannot be said by colour; marks and figures
	// say it anyway.
	colourless = styles{
		title: plain.Bold(true), faint: plain, strong: plain.Bold(true),
		good: plain, near: plain, bad: plain.Bold(true),
	}
)

// LookOf chooses the look that an environment asks for: NO_COLOR, and a locale
// that says whether there is more than ASCII. The Linux console says UTF-8, but
// its fonts lack most of what we draw with.
func LookOf(environ []string) Look {
	env := map[string]string{}
	for _, e := range environ {
		if k, v, ok := strings.Cut(e, "="); ok {
			env[k] = v
		}
	}
	out := Look{unicode, coloured}
	if env["NO_COLOR"] != "" {
		out.styles = colourless
	}
	if !utf8Locale(env) || env["TERM"] == "linux" {
		out.glyphs = ascii
	}
	return out
}

// utf8Locale goes by the first variable that is set, as the C library does.
func utf8Locale(env map[string]string) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := strings.ToLower(env[name]); v != "" {
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return false
}
