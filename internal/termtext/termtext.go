// Package termtext fits text into the columns of a terminal: the width of text,
// padding, truncation, wrapping and bars. Widths are terminal cells, in which a wide
// character counts two and an escape sequence none.
package termtext

import (
	"regexp"
	"strings"
	"sync"
	"unicode"

	"github.com/charmbracelet/x/ansi"
)

// Width returns how many cells text takes.
func Width(text string) int { return ansi.StringWidth(text) }

// PadLeft adds blanks before text, up to a width: text is aligned to the right.
func PadLeft(text string, width int) string { return blanks(text, width) + text }

// PadRight adds blanks after text, up to a width: text is aligned to the left.
func PadRight(text string, width int) string { return text + blanks(text, width) }

func blanks(text string, width int) string { return strings.Repeat(" ", max(0, width-Width(text))) }

// Truncate returns text if it fits, and otherwise the part that fits before tail.
func Truncate(text string, width int, tail string) string {
	return ansi.Truncate(text, width, tail)
}

// Printable replaces characters that could move the cursor, that are not seen, or that are drawn over other lines, because
// other users choose names of processes and files.
func Printable(text string) string {
	marks := 0 // on the character before
	return strings.Map(func(r rune) rune {
		if r >= firstMark && unicode.In(r, unicode.Mn, unicode.Me) {
			marks++
		} else {
			marks = 0
		}
		if marks <= maxMarks && unicode.IsPrint(r) && (r < firstMark || r != blankBraille && !unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r)) {
			return r
		}
		return '?'
	}, text)
}

const (
	firstMark    = '\u0300'
	blankBraille = '\u2800'
	// maxMarks is how many marks one character may have. Languages need fewer; a hundred cover the lines above and below.
	maxMarks = 4
)

// unbroken matches the spaces at which a line must not break: between a number and its unit ("4
// GiB", "50 %", "75 W"), and before a PID in brackets ("(4711)").
var unbroken = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(` ([KMGTPE]?i?B\b|\(\d+\)|%|°C|W\b)`)
})

// Wrap breaks text into lines at blanks, but not at hyphens, which occur in names. A word that is
// wider than width gets its own line.
func Wrap(text string, width int) (lines []string) {
	const glue = "\x00"
	line := ""
	for word := range strings.FieldsSeq(unbroken().ReplaceAllString(text, glue+"${1}")) {
		word = strings.ReplaceAll(word, glue, " ")
		if line != "" && Width(line)+1+Width(word) > width {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimLeft(line+" "+word, " ")
	}
	return append(lines, line)
}

// BarGlyphs are the characters of a bar.
type BarGlyphs struct {
	Full, Empty string
	Parts       []string // fractions of a full cell, in equal steps; may be empty
}

// Bar draws a fraction between 0 and 1 as cells, of which the first filled are not empty. A
// fraction above 0 fills at least a part of a cell.
func (g BarGlyphs) Bar(share float64, width int) (cells []string, filled int) {
	steps := len(g.Parts) + 1 // steps of one cell
	n := min(max(int(share*float64(width*steps)+0.5), 0), width*steps)
	if share > 0 && width > 0 {
		n = max(n, 1)
	}
	cells = make([]string, width)
	for i := range cells {
		switch part := min(max(n-i*steps, 0), steps); part {
		case 0:
			cells[i] = g.Empty
		case steps:
			cells[i] = g.Full
		default:
			cells[i] = g.Parts[part-1]
		}
	}
	return cells, (n + steps - 1) / steps
}

// Blocks are glyphs of eighths of a cell.
var Blocks = BarGlyphs{Full: "█", Empty: "·", Parts: strings.Split("▏▎▍▌▋▊▉", "")}

// ASCII is for terminals without Unicode.
var ASCII = BarGlyphs{Full: "#", Empty: "."}

// UTF8Locale reports whether the locale uses UTF-8, and whether a locale is set. As in the C
// library, the first variable that is set decides.
func UTF8Locale(getenv func(string) string) (utf8, set bool) {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := strings.ToLower(getenv(name)); v != "" {
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8"), true
		}
	}
	return false, false
}

// ascii maps the non-ASCII characters of our own texts to ASCII: one byte for one cell where
// columns depend on it.
var ascii = strings.NewReplacer("→", ">", "…", "~", "–", "-", "×", "x", "≤", "<=", "µ", "u", "·", ".", "°", "", "█", "#",
	"▏", " ", "▎", " ", "▍", " ", "▌", "#", "▋", "#", "▊", "#", "▉", "#")

// ToASCII converts text for a terminal that shows only ASCII. Characters without a replacement
// become question marks.
func ToASCII(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= unicode.MaxASCII {
			return '?'
		}
		return r
	}, ascii.Replace(text))
}
