package tui

import (
	"slices"
	"strings"

	"charm.land/lipgloss/v2"

	"ration/internal/termtext"
)

// column is a column of a table whose rows are of type R.
type column[R any] struct {
	title  string
	right  bool   // align right
	drop   int    // columns with the highest value are dropped first if not all fit; 0 is never dropped
	sort   string // key that sorts by this column, or ""
	text   func(r R) string
	needed func(r R) bool                      // nil: always shown; otherwise the column is shown if any row needs it
	style  func(r R) *lipgloss.Style           // nil for plain
	fill   func(r R, width int) string         // replaces text, in the one column that takes the remaining width
	most   func(width int) int                 // most columns of a cell, on a terminal of that width; nil means maxCell
	note   func(r R) (string, *lipgloss.Style) // in the first column: a text of a row that replaces all other columns
}

const maxCell = 24 // columns of a cell

// table has columns, and their order and widths.
type table[R any] struct {
	columns  []column[R]
	settings *TableSettings // nil: it cannot be sorted, and no column is hidden
	down     func(sort string) bool
	least    int // least width of the column that takes the remaining width; with less it is left out
	wanted   int // width for which other columns are dropped
}

// render returns the header, and a line for each shown row. All rows decide which columns are
// shown, so that scrolling does not change the columns. Two columns before each line are left for a
// mark.
func (t table[R]) render(m *Model, width int, all, shown []R) (header string, lines []string) {
	columns, widths := t.fit(m, width-2, all, shown)
	cell := func(c column[R], text string) string {
		w := widths[c.title]
		if text = m.truncate(text, w); c.right {
			return termtext.PadLeft(text, w)
		}
		return termtext.PadRight(text, w)
	}
	titles := make([]string, len(columns))
	for i, c := range columns {
		titles[i] = cell(c, t.title(m, c))
		if c.fill != nil && c.text == nil { // a bar
			titles[i] = strings.Repeat(" ", widths[c.title])
		}
	}
	for _, r := range shown {
		cells := make([]string, 0, len(columns))
		for i, c := range columns {
			var text string
			if c.fill != nil {
				text = c.fill(r, widths[c.title])
			} else {
				text = cell(c, termtext.Printable(c.text(r)))
				if c.style != nil {
					text = c.style(r).Render(text)
				}
			}
			cells = append(cells, text)
			if i > 0 || c.note == nil {
				continue
			}
			if note, style := c.note(r); note != "" {
				cells = append(cells, style.Render(m.truncate(termtext.Printable(note), width-4-widths[c.title])))
				break
			}
		}
		lines = append(lines, strings.Join(cells, "  "))
	}
	return strings.Join(titles, "  "), lines
}

// fit returns the columns that fit, and how wide each is.
func (t table[R]) fit(m *Model, width int, all, shown []R) (columns []column[R], widths map[string]int) {
	widths = map[string]int{}
	for _, c := range t.columns {
		if c.needed != nil && !slices.ContainsFunc(all, c.needed) || t.settings != nil && c.drop > 0 && t.settings.hides(c.title) {
			continue
		}
		columns = append(columns, c)
		if c.fill != nil {
			continue
		}
		w, most := termtext.Width(t.title(m, c)), maxCell
		for _, r := range shown {
			w = max(w, termtext.Width(termtext.Printable(c.text(r))))
		}
		if c.most != nil {
			most = c.most(width)
		}
		widths[c.title] = min(w, most)
	}
	for {
		left, flexible := width, ""
		for i, c := range columns {
			left -= widths[c.title]
			if i > 0 {
				left -= 2
			}
			if c.fill != nil {
				left += widths[c.title]
				flexible = c.title
			}
		}
		if left >= t.wanted || !t.dropColumn(&columns) {
			if left < t.least {
				columns = slices.DeleteFunc(columns, func(c column[R]) bool { return c.fill != nil && c.drop > 0 })
			}
			widths[flexible] = max(left, 0)
			return columns, widths
		}
	}
}

// dropColumn drops the next column, and reports whether there was one. It keeps the column that the
// table is sorted by, and the one that takes the remaining width.
func (t table[R]) dropColumn(columns *[]column[R]) bool {
	next := -1
	for i, c := range *columns {
		sorted := t.settings != nil && c.sort != "" && c.sort == t.settings.Sort
		if c.drop > 0 && c.fill == nil && !sorted && (next < 0 || c.drop > (*columns)[next].drop) {
			next = i
		}
	}
	if next >= 0 {
		*columns = slices.Delete(*columns, next, next+1)
	}
	return next >= 0
}

// title returns a column's title, with a mark if the table is sorted by it.
func (t table[R]) title(m *Model, c column[R]) string {
	if t.settings == nil || c.sort == "" || c.sort != t.settings.Sort {
		return c.title
	}
	if t.down(c.sort) != t.settings.Reverse {
		return c.title + m.theme.down
	}
	return c.title + m.theme.up
}

// window returns which of n lines to show in height lines, around one of them.
func window(n, height, around int) (first, last int) {
	height = max(0, height)
	first = max(0, min(around-height/2, n-height))
	return first, min(n, first+height)
}
