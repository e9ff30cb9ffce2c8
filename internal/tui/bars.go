package tui

import (
	"fmt"
	"slices"
	"strings"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"ration/internal/abi"
	"ration/internal/humanfmt"
	"ration/internal/job"
)

// bar draws what is used of a limit. Its full width is the limit, or what was ever
// used where that is more, or what the device has where there is no limit.
func (m *Model) bar(d job.Device, width int) string {
	g := m.look.glyphs
	scale := max(d.Used, d.Peak)
	if d.Limited {
		scale = max(scale, d.Limit)
	} else {
		scale = max(scale, d.Total)
	}
	room := width - 1 // the last cell is for a mark at the full width
	at := func(bytes uint64) int {
		if scale == 0 {
			return 0
		}
		return int(float64(bytes)/float64(scale)*float64(room) + 0.5)
	}
	steps := len(g.parts) + 1
	filled := 0
	if scale > 0 {
		filled = int(float64(d.Used)/float64(scale)*float64(room*steps) + 0.5)
		if d.Used > 0 {
			filled = max(filled, 1) // a little is not nothing
		}
	}
	var out runs
	for i := range width {
		used := min(max(filled-i*steps, 0), steps)
		beyond := d.Limited && i > at(d.Limit)
		switch {
		case d.Limited && i == at(d.Limit):
			out.add(&m.look.strong, g.limit)
		case used == steps:
			out.add(m.shade(d, beyond), g.full)
		case used > 0:
			out.add(m.shade(d, beyond), g.parts[used-1])
		case d.Peak > d.Used && i == at(d.Peak):
			out.add(&m.look.near, g.peak)
		case i == width-1:
			out.add(&m.look.faint, " ")
		default:
			out.add(&m.look.faint, g.empty)
		}
	}
	return out.String()
}

// runs is text in which neighbours of one style are styled together.
type runs struct {
	done  strings.Builder
	style *lipgloss.Style
	text  string
}

func (r *runs) add(style *lipgloss.Style, text string) {
	if style != r.style {
		r.flush()
		r.style = style
	}
	r.text += text
}

func (r *runs) flush() {
	if r.text != "" {
		r.done.WriteString(r.style.Render(r.text))
		r.text = ""
	}
}

func (r *runs) String() string {
	r.flush()
	return r.done.String()
}

// shade is the colour of a bar: how near the limit it is.
func (m *Model) shade(d job.Device, beyond bool) *lipgloss.Style {
	switch share := share(d); {
	case !d.Limited:
		return &m.look.good
	case beyond || share > 0.95:
		return &m.look.bad
	case share > 0.8:
		return &m.look.near
	}
	return &m.look.good
}

func share(d job.Device) float64 {
	if !d.Limited || d.Limit == 0 {
		return 0
	}
	return float64(d.Used) / float64(d.Limit)
}

// jobColumn is a figure beside a bar.
type jobColumn struct {
	title string
	width int
	goes  int // the higher, the sooner it goes where there is no room; 0 stays
	text  func(s *job.Status, d job.Device, first bool) string
}

var jobColumns = []jobColumn{
	{"USED", 5, 0, func(_ *job.Status, d job.Device, _ bool) string { return humanfmt.Short(d.Used) }},
	{"LIMIT", 5, 0, func(_ *job.Status, d job.Device, _ bool) string {
		if !d.Limited {
			return "none"
		}
		return humanfmt.Short(d.Limit)
	}},
	{"SHARE", 5, 1, func(_ *job.Status, d job.Device, _ bool) string {
		if !d.Limited {
			return ""
		}
		return fmt.Sprintf("%.0f%%", 100*share(d))
	}},
	{"PEAK", 5, 3, func(_ *job.Status, d job.Device, _ bool) string { return humanfmt.Short(d.Peak) }},
	{"PROC", 4, 4, func(s *job.Status, _ job.Device, first bool) string {
		if !first {
			return ""
		}
		return fmt.Sprint(len(s.Processes))
	}},
	{"REFUSED", 7, 2, func(_ *job.Status, d job.Device, _ bool) string { return humanfmt.Count(d.Refused) }},
}

// leastBar is what a bar needs to be worth having, and goodBar what it takes from
// the figures.
const leastBar, goodBar = 4, 16

// jobLines are a line for each device of each job, below their titles. at is the
// selected job's first.
func (m *Model) jobLines(width int) (title string, lines []string, at int) {
	name := len("JOB")
	for _, s := range m.sample.Jobs {
		name = max(name, cells(printable(s.Title())))
	}
	name = min(name, max(8, width/5))
	columns, bar := fitJobColumns(width - len("> ") - name - len("  DEV "))
	title = "  " + pad("JOB", -name) + "  DEV " + strings.Repeat(" ", bar)
	for _, c := range columns {
		title += "  " + pad(c.title, c.width)
	}
	for i := range m.sample.Jobs {
		s := &m.sample.Jobs[i]
		mark, style := "  ", plain
		if s.Path == m.selected {
			mark, style, at = m.look.strong.Render(m.look.here)+" ", m.look.strong, len(lines)
		}
		front := mark + style.Render(pad(m.shortTitle(s, name), -name)) + "  "
		switch {
		case s.Error != "":
			lines = append(lines, front+m.look.bad.Render(m.cut(printable(s.Error), width-4-name)))
		case len(s.Devices) == 0:
			lines = append(lines, front+m.look.faint.Render("nothing was used yet"))
		}
		for n, d := range s.Devices {
			if n > 0 {
				front = strings.Repeat(" ", 4+name)
			}
			line := front + pad(fmt.Sprint(d.Device), 3) + " " + m.bar(d, bar)
			for _, c := range columns {
				line += "  " + m.figureStyle(c.title, d).Render(pad(c.text(s, d, n == 0), c.width))
			}
			lines = append(lines, line)
		}
	}
	return title, lines, at
}

// fitJobColumns is which figures there is room for, and what is left for a bar.
func fitJobColumns(width int) (columns []jobColumn, bar int) {
	columns = slices.Clone(jobColumns)
	for {
		bar = width
		worst := 0
		for i, c := range columns {
			bar -= c.width + 2
			if c.goes > columns[worst].goes {
				worst = i
			}
		}
		if bar >= goodBar || columns[worst].goes == 0 {
			break
		}
		columns = slices.Delete(columns, worst, worst+1)
	}
	if bar < leastBar {
		bar = 0
	}
	return columns, bar
}

// shortTitle is a job's name, or the end of its path, which says most.
func (m *Model) shortTitle(s *job.Status, width int) string {
	title := printable(s.Title())
	if over := cells(title) - width; s.Job == "" && over > 0 {
		return ansi.TruncateLeft(title, over+1, m.look.cut)
	}
	return m.cut(title, width)
}

// figureStyle makes figures stand out that somebody should look at.
func (m *Model) figureStyle(title string, d job.Device) lipgloss.Style {
	most := abi.MakeLimit(d.Limit, d.Tolerance).Ceiling() * abi.Unit
	switch {
	case title == "REFUSED" && d.Refused > 0, title == "USED" && d.Limited && d.Used > most:
		return m.look.bad
	case title == "PEAK", title == "PROC", title == "REFUSED":
		return m.look.faint
	}
	return plain
}
