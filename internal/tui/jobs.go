package tui

import (
	"fmt"
	"slices"
	"strings"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"ration/internal/abi"
	"ration/internal/humanfmt"
	"ration/internal/termtext"
	"ration/machine"
)

// usageBar draws the usage of a device. Its full width is the limit, or the peak where
// that is more, or the size of the device where there is no limit.
func (m *Model) usageBar(d machine.Device, width int) string {
	if width == 0 {
		return ""
	}
	scale := max(d.Used, d.Peak)
	if d.Limited {
		scale = max(scale, d.Limit)
	} else {
		scale = max(scale, d.Total)
	}
	share := func(bytes uint64) float64 {
		if scale == 0 {
			return 0
		}
		return float64(bytes) / float64(scale)
	}
	barWidth := width - 1 // the last cell is for a mark at the full width
	column := func(bytes uint64) int { return int(share(bytes)*float64(barWidth) + 0.5) }
	cells, filled := m.theme.bar.Bar(share(d.Used), barWidth)
	var out styledText
	for i, cell := range append(cells, " ") {
		switch {
		case d.Limited && i == column(d.Limit):
			out.add(&m.theme.bold, m.theme.limit)
		case i < filled:
			out.add(m.usageStyle(d, d.Limited && i > column(d.Limit)), cell)
		case d.Peak > d.Used && i == column(d.Peak):
			out.add(&m.theme.warn, m.theme.peak)
		default:
			out.add(&m.theme.faint, cell)
		}
	}
	return out.String()
}

// styledText renders neighbours of one style together.
type styledText struct {
	done  strings.Builder
	style *lipgloss.Style // of text
	text  string          // not rendered yet
}

func (t *styledText) add(style *lipgloss.Style, text string) {
	if style != t.style {
		t.flush()
		t.style = style
	}
	t.text += text
}

func (t *styledText) flush() {
	if t.text != "" {
		t.done.WriteString(t.style.Render(t.text))
		t.text = ""
	}
}

func (t *styledText) String() string {
	t.flush()
	return t.done.String()
}

// usageStyle is the colour of a bar, by how near the limit usage is. beyond is for the
// part of a bar beyond the limit.
func (m *Model) usageStyle(d machine.Device, beyond bool) *lipgloss.Style {
	switch share := shareOfLimit(d); {
	case !d.Limited:
		return &m.theme.ok
	case beyond || share > 0.95:
		return &m.theme.bad
	case share > 0.8:
		return &m.theme.warn
	}
	return &m.theme.ok
}

func shareOfLimit(d machine.Device) float64 {
	if !d.Limited || d.Limit == 0 {
		return 0
	}
	return float64(d.Used) / float64(d.Limit)
}

// jobColumn is a column to the right of the bars.
type jobColumn struct {
	title string
	width int
	drop  int // columns with the highest are dropped first where there is no room; 0 stays
	text  func(s *machine.Job, d machine.Device, firstOfJob bool) string
}

var jobColumns = []jobColumn{
	{"USED", 5, 0, func(_ *machine.Job, d machine.Device, _ bool) string { return humanfmt.Short(d.Used) }},
	{"LIMIT", 5, 0, func(_ *machine.Job, d machine.Device, _ bool) string {
		if !d.Limited {
			return "none"
		}
		return humanfmt.Short(d.Limit)
	}},
	{"SHARE", 5, 1, func(_ *machine.Job, d machine.Device, _ bool) string {
		if !d.Limited {
			return ""
		}
		return fmt.Sprintf("%.0f%%", 100*shareOfLimit(d))
	}},
	{"PEAK", 5, 3, func(_ *machine.Job, d machine.Device, _ bool) string { return humanfmt.Short(d.Peak) }},
	{"PROC", 4, 4, func(s *machine.Job, _ machine.Device, firstOfJob bool) string {
		if !firstOfJob {
			return ""
		}
		return fmt.Sprint(len(s.Processes))
	}},
	{"REFUSED", 7, 2, func(_ *machine.Job, d machine.Device, _ bool) string { return humanfmt.Count(d.Refused) }},
}

// A bar narrower than minBarWidth is left out. Columns are dropped for a bar of
// wantedBarWidth.
const minBarWidth, wantedBarWidth = 4, 16

// jobLines returns the table of jobs: its header, a line for each device of each job,
// and the index of the selected job's first line.
func (m *Model) jobLines(width int) (header string, lines []string, selected int) {
	nameWidth := len("JOB")
	for _, s := range m.sample.Jobs {
		nameWidth = max(nameWidth, termtext.Width(termtext.Printable(s.Title())))
	}
	nameWidth = min(nameWidth, max(8, width/5))
	columns, barWidth := fitJobColumns(m.withCompute(), width-len("> ")-nameWidth-len("  DEV "))
	header = "  " + termtext.PadRight("JOB", nameWidth) + "  DEV " + strings.Repeat(" ", barWidth)
	for _, c := range columns {
		header += "  " + termtext.PadLeft(c.title, c.width)
	}
	for i := range m.sample.Jobs {
		s := &m.sample.Jobs[i]
		mark, style := "  ", plain
		if s.Path == m.selected {
			mark, style, selected = m.theme.bold.Render(m.theme.cursor)+" ", m.theme.bold, len(lines)
		}
		prefix := mark + style.Render(termtext.PadRight(m.shortTitle(s, nameWidth), nameWidth)) + "  "
		switch {
		case s.Error != "":
			lines = append(lines, prefix+m.theme.bad.Render(m.truncate(termtext.Printable(s.Error), width-4-nameWidth)))
		case len(s.Devices) == 0:
			lines = append(lines, prefix+m.theme.faint.Render("nothing was used yet"))
		}
		for n, d := range s.Devices {
			if n > 0 {
				prefix = strings.Repeat(" ", 4+nameWidth)
			}
			line := prefix + termtext.PadLeft(fmt.Sprint(d.Device), 3) + " " + m.usageBar(d, barWidth)
			for _, c := range columns {
				line += "  " + m.columnStyle(c.title, s, d).Render(termtext.PadLeft(c.text(s, d, n == 0), c.width))
			}
			lines = append(lines, line)
		}
	}
	return header, lines, selected
}

// fitJobColumns returns the columns that there is room for, and the width of the bar.
func fitJobColumns(all []jobColumn, width int) (columns []jobColumn, barWidth int) {
	columns = slices.Clone(all)
	for {
		barWidth = width
		first := 0 // to be dropped
		for i, c := range columns {
			barWidth -= c.width + 2
			if c.drop > columns[first].drop {
				first = i
			}
		}
		if barWidth >= wantedBarWidth || columns[first].drop == 0 {
			break
		}
		columns = slices.Delete(columns, first, first+1)
	}
	if barWidth < minBarWidth {
		barWidth = 0
	}
	return columns, barWidth
}

// shortTitle is a job's name, or the end of its path, which tells paths apart.
func (m *Model) shortTitle(s *machine.Job, width int) string {
	title := termtext.Printable(s.Title())
	if excess := termtext.Width(title) - width; s.Name == "" && excess > 0 {
		return ansi.TruncateLeft(title, excess+1, m.theme.ellipsis)
	}
	return m.truncate(title, width)
}

// columnStyle highlights refusals, and usage beyond what may be granted.
func (m *Model) columnStyle(title string, s *machine.Job, d machine.Device) lipgloss.Style {
	ceiling := abi.MakeLimit(d.Limit, d.Tolerance).Ceiling() * abi.Unit
	switch {
	case title == computeTitle && unenforced(s, d):
		return m.theme.bad
	case title == "REFUSED" && d.Refused > 0, title == "USED" && d.Limited && d.Used > ceiling:
		return m.theme.bad
	case title == "PEAK", title == "PROC", title == "REFUSED":
		return m.theme.faint
	}
	return plain
}
