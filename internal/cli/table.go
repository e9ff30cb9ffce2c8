package cli

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// column is one of a table.
type column[T any] struct {
	title string
	right bool // aligned
	text  func(T) string
	shown func(T) bool // nil, or whether a line makes the column worth its room
}

// table lays lines out in columns, of which those that no line needs are left
// out. On a terminal the last one gives way to its width, less a margin of two.
func table[T any](columns []column[T], lines []T, to terminal) []string {
	out := make([]strings.Builder, len(lines)+1)
	for _, c := range columns {
		if c.shown != nil && !slices.ContainsFunc(lines, c.shown) {
			continue
		}
		cells, width := []string{c.title}, utf8.RuneCountInString(c.title)
		for _, l := range lines {
			cell := printable(c.text(l))
			cells, width = append(cells, cell), max(width, utf8.RuneCountInString(cell))
		}
		if !c.right {
			width = -width
		}
		for i, cell := range cells {
			if out[i].Len() > 0 {
				out[i].WriteString("  ")
			}
			out[i].WriteString(pad(cell, width))
		}
	}
	text := make([]string, len(out))
	for i := range out {
		text[i] = strings.TrimRight(out[i].String(), " ")
		if to.tty {
			text[i] = cut(text[i], to.width-2)
		}
		if i == 0 {
			text[i] = to.style(dim, text[i])
		}
	}
	return text
}

// printable keeps a name that somebody else chose from moving the cursor.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}

func cut(s string, width int) string {
	if utf8.RuneCountInString(s) <= width {
		return s
	}
	return string([]rune(s)[:width-1]) + "…"
}

// bar draws a share of 1, to an eighth of a character.
func (t terminal) bar(share float64, width int) string {
	eighths := min(max(int(share*float64(8*width)+0.5), 0), 8*width)
	bar, left := strings.Repeat("█", eighths/8), width-eighths/8
	if part := eighths % 8; part > 0 {
		bar, left = bar+string([]rune("▏▎▍▌▋▊▉")[part-1]), left-1
	}
	return bar + t.style(dim, strings.Repeat("·", left))
}

// wrap breaks text at blanks to fit beside an indent, which the lines after the
// first get. What reads from a pipe wants one line.
func (t terminal) wrap(text string, indent int) string {
	if !t.tty {
		return text
	}
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > t.width-indent {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimLeft(line+" "+word, " ")
	}
	return strings.Join(append(lines, line), "\n"+strings.Repeat(" ", indent))
}

// pad fills text up to a width, counted in characters; to the right of it where
// the width is negative.
func pad(text string, width int) string {
	fill := strings.Repeat(" ", max(0, max(width, -width)-utf8.RuneCountInString(text)))
	if width < 0 {
		return text + fill
	}
	return fill + text
}
