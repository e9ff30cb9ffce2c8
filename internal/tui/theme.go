package tui

import (
	"strings"

	"charm.land/lipgloss/v2"

	"ration/internal/termtext"
)

// Theme has the characters and styles of frames.
type Theme struct {
	glyphs
	styles
}

// glyphs are the characters of a frame other than letters and digits.
type glyphs struct {
	bar                       termtext.BarGlyphs
	limit, peak               string   // marks in a bar
	cursor                    string   // marks the selected row
	otherCursor               string   // marks the selected row of the table without the focus
	spark                     []string // fractions of a full cell, beginning with none
	branch, edit              string   // before a child process; at the position where text is typed
	degree                    string
	rule, ellipsis            string
	down, up                  string // sort orders, and directions with more lines
	arrows, sides, dot, times string
	atMost                    string // before a cap
}

var (
	unicodeGlyphs = glyphs{bar: termtext.Blocks, limit: "┃", peak: "│",
		cursor: "▸", otherCursor: "▹", spark: strings.Split("▁▂▃▄▅▆▇█", ""), branch: "└ ", edit: "█", degree: "°", rule: "─", ellipsis: "…", down: "▼", up: "▲", arrows: "↑↓", sides: "←→", dot: "·", times: "×", atMost: "≤"}
	asciiGlyphs = glyphs{bar: termtext.ASCII, limit: "|", peak: ":",
		cursor: ">", otherCursor: "*", spark: strings.Split("_.:-=+*#", ""), branch: "\\ ", edit: "_", degree: "", rule: "-", ellipsis: "~", down: "v", up: "^", arrows: "up/down", sides: "left/right", dot: "-", times: "x", atMost: "<="}
)

// styles are the styles of a frame. Their colours are the terminal's own sixteen, which its user
// has chosen to be readable.
type styles struct {
	title, faint, bold, ok, warn, bad lipgloss.Style
}

var (
	plain        = lipgloss.NewStyle()
	colourStyles = styles{
		title: plain.Bold(true).Foreground(lipgloss.Cyan), faint: plain.Faint(true), bold: plain.Bold(true),
		ok: plain.Foreground(lipgloss.Green), warn: plain.Foreground(lipgloss.Yellow), bad: plain.Foreground(lipgloss.Red),
	}
	// monochromeStyles use bold instead of colours. Marks and numbers repeat all information that
	// colours show.
	monochromeStyles = styles{
		title: plain.Bold(true), faint: plain, bold: plain.Bold(true),
		ok: plain, warn: plain, bad: plain.Bold(true),
	}
)

// NewTheme returns the theme for an environment: without colours if NO_COLOR is set, and in ASCII
// if the locale is not UTF-8. The Linux console claims UTF-8, but its fonts lack most of the
// characters.
func NewTheme(environ []string) Theme {
	env := map[string]string{}
	for _, e := range environ {
		if k, v, ok := strings.Cut(e, "="); ok {
			env[k] = v
		}
	}
	theme := Theme{unicodeGlyphs, colourStyles}
	if env["NO_COLOR"] != "" {
		theme.styles = monochromeStyles
	}
	if utf8, _ := termtext.UTF8Locale(func(name string) string { return env[name] }); !utf8 || env["TERM"] == "linux" {
		theme.glyphs = asciiGlyphs
	}
	return theme
}
