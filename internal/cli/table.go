package cli

import (
	"slices"
	"strings"

	"ration/internal/termtext"
)

// column is a column of a table with rows of type T.
type column[T any] struct {
	title  string
	right  bool // align right
	text   func(T) string
	needed func(T) bool // nil: always shown; otherwise the column is shown if any row needs it
}

// printTable prints rows below the titles of the columns, indented by two. On a
// terminal, lines are cut at its width.
func printTable[T any](out terminal, columns []column[T], rows []T) {
	lines := make([]string, len(rows)+1)
	for _, c := range columns {
		if c.needed != nil && !slices.ContainsFunc(rows, c.needed) {
			continue
		}
		cells, width := []string{c.title}, termtext.Width(c.title)
		for _, r := range rows {
			cell := termtext.Printable(c.text(r))
			cells, width = append(cells, cell), max(width, termtext.Width(cell))
		}
		pad := termtext.PadRight
		if c.right {
			pad = termtext.PadLeft
		}
		for i, cell := range cells {
			lines[i] += "  " + pad(cell, width)
		}
	}
	for i, line := range lines {
		line = strings.TrimRight(line, " ")
		if out.tty {
			line = termtext.Truncate(line, out.width, "…")
		}
		if i == 0 {
			line = out.style(dim, line)
		}
		out.printf("%s\n", line)
	}
}
