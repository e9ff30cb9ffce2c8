package tui

import (
	"fmt"
	"strings"

	"charm.land/lipgloss/v2"

	"ration/internal/humanfmt"
	"ration/internal/termtext"
	"ration/machine"
)

// gpuTable has a row for each device of the machine.
func (m *Model) gpuTable() table[machine.GPU] {
	return table[machine.GPU]{least: 4, wanted: 12, columns: []column[machine.GPU]{
		{title: "GPU", right: true, text: func(g machine.GPU) string { return fmt.Sprint(g.Device) }},
		{title: "MODEL", drop: 9, text: func(g machine.GPU) string { return strings.TrimPrefix(g.Name, "NVIDIA ") }},
		{title: "bar", drop: 1, fill: m.gpuBar},
		{title: "USED", right: true, text: usedOf},
		{title: "TOTAL", right: true, text: totalOf},
		{title: m.handedOut("HANDED OUT", "YOURS"), right: true, drop: 2, text: func(g machine.GPU) string {
			if g.Rations > g.Total && g.Total > 0 {
				return "! " + humanfmt.Short(g.Rations) // a colour alone would not be enough
			}
			return humanfmt.Short(g.Rations)
		},
			style: func(g machine.GPU) *lipgloss.Style {
				if g.Rations > g.Total && g.Total > 0 {
					return &m.theme.bad
				}
				return &plain
			}},
		{title: "NO LIMIT", right: true, drop: 6, text: func(g machine.GPU) string { return humanfmt.Plural(g.Unlimited, "job", "jobs") },
			needed: func(g machine.GPU) bool { return g.Unlimited > 0 }},
		{title: "OUTSIDE", right: true, drop: 3, text: func(g machine.GPU) string { return humanfmt.Short(m.outside(g.Device)) }},
		{title: "BUSY", right: true, drop: 1, text: func(g machine.GPU) string { return optional("%d%%", g.Utilization) },
			needed: func(g machine.GPU) bool { return g.Utilization != nil }},
		{title: "TEMP", right: true, drop: 4, text: func(g machine.GPU) string { return optional("%d"+m.theme.degree+"C", g.Temperature) },
			needed: func(g machine.GPU) bool { return g.Temperature != nil }},
		{title: "POWER", right: true, drop: 5, text: func(g machine.GPU) string { return optional("%.0fW", g.Power) },
			needed: func(g machine.GPU) bool { return g.Power != nil }},
	}}
}

// usedOf and totalOf format what is used of a device and its size. Of a GPU that has failed they are not known.
func usedOf(g machine.GPU) string {
	if g.Failed {
		return "failed"
	}
	return humanfmt.Short(g.Used)
}

func totalOf(g machine.GPU) string {
	if g.Total == 0 {
		return "?"
	}
	return humanfmt.Short(g.Total)
}

// handedOut returns the words for the limits on a device: of all jobs, or of this user's.
func (m *Model) handedOut(all, mine string) string {
	if m.sample.Mine {
		return mine
	}
	return all
}

// optional formats a value that the driver may not report.
func optional[T any](format string, v *T) string {
	if v == nil {
		return ""
	}
	return fmt.Sprintf(format, *v)
}

// outside returns how many bytes of a device are held by processes in no job.
func (m *Model) outside(device int) (bytes uint64) {
	for _, o := range m.sample.Outside {
		if o.Device == device {
			bytes += o.Used
		}
	}
	return bytes
}

// gpuLines returns at most most lines with the devices of the machine: a table, or a grid if that does not fit. If the
// grid does not fit either, it says how many devices there are more.
func (m *Model) gpuLines(most int) (lines []line) {
	devices := m.sample.Devices
	switch {
	case len(devices) == 0 || most < 1:
		return nil
	case most > len(devices):
		return m.gpuRows(devices)
	}
	perLine := m.gridCells()
	shown := devices
	if perLine*most < len(devices) {
		shown = devices[:perLine*(most-1)]
	}
	lines = m.gpuGrid(shown, perLine)
	if more := devices[len(shown):]; len(more) > 0 {
		count, rest, _ := strings.Cut(m.gpuSum(more), ":")
		if len(shown) > 0 {
			count = "and " + count
		}
		lines = append(lines, line{text: m.truncate(count+" (g shows all):"+rest, m.width)})
	}
	return lines
}

// gpuRows returns the table of devices.
func (m *Model) gpuRows(devices []machine.GPU) (lines []line) {
	header, rows := m.gpuTable().render(m, m.width, m.sample.Devices, devices)
	lines = append(lines, line{text: "  " + m.theme.faint.Render(header)})
	for _, row := range rows {
		lines = append(lines, line{text: "  " + row})
	}
	return lines
}

const (
	gridGap     = 2
	minGridCell = 18 // columns of "15 ██████ 140G ! 97%"
)

// gridCells returns how many devices fit a line of the grid.
func (m *Model) gridCells() int { return max(1, (m.width-2+gridGap)/(minGridCell+gridGap)) }

// gpuGrid returns several devices in each line: the number, a bar, what is used, a mark if more is handed out than there
// is, and how busy it is.
func (m *Model) gpuGrid(devices []machine.GPU, perLine int) (lines []line) {
	perLine = min(perLine, max(1, len(devices)))
	width := (m.width - 2 + gridGap) / perLine
	width = max(1, width-gridGap)
	numbers, used := 1, 4
	for _, g := range devices {
		numbers, used = max(numbers, len(fmt.Sprint(g.Device))), max(used, len(usedOf(g)))
	}
	cell := func(g machine.GPU) string {
		after := " " + termtext.PadLeft(usedOf(g), used)
		mark := " "
		if g.Rations > g.Total && g.Total > 0 {
			mark = m.theme.bad.Render("!")
		}
		after += mark + termtext.PadLeft(optional("%d%%", g.Utilization), 4)
		before := termtext.PadLeft(fmt.Sprint(g.Device), numbers) + " "
		bar := max(0, width-termtext.Width(before)-termtext.Width(after))
		return termtext.PadRight(m.truncate(before+m.gpuBar(g, bar)+after, width), width)
	}
	for from := 0; from < len(devices); from += perLine {
		var cells []string
		for _, g := range devices[from:min(len(devices), from+perLine)] {
			cells = append(cells, cell(g))
		}
		lines = append(lines, line{text: "  " + strings.Join(cells, strings.Repeat(" ", gridGap))})
	}
	return lines
}

// gpusText returns the table of all devices.
func (m *Model) gpusText() []line {
	lines := []line{m.rule("GPUs")}
	if len(m.sample.Devices) == 0 {
		return append(lines, m.paragraph("none: there is no driver here, or it does not respond", 2)...)
	}
	return append(lines, m.gpuRows(m.sample.Devices)...)
}

// gpuSum formats several devices in one line.
func (m *Model) gpuSum(devices []machine.GPU) string {
	used, total, rations := uint64(0), uint64(0), uint64(0)
	for _, g := range devices {
		used, total, rations = used+g.Used, total+g.Total, rations+min(g.Rations, ^rations)
	}
	return fmt.Sprintf("%s: %s of %s, %s %s", humanfmt.Plural(len(devices), "GPU", "GPUs"), humanfmt.Short(used), humanfmt.Short(total), humanfmt.Short(rations), m.handedOut("handed out", "yours"))
}

// findingLines returns at most most lines with the findings.
func (m *Model) findingLines(most int) (lines []line) {
	all := m.sample.Findings
	for i, f := range all {
		if len(lines) == most-1 && i < len(all)-1 {
			text := fmt.Sprintf("! %s (f shows all)", humanfmt.Plural(len(all)-i, "finding", "findings"))
			if i > 0 {
				text = fmt.Sprintf("! and %d more (f shows all)", len(all)-i)
			}
			return append(lines, line{text: m.theme.bad.Render(text)})
		}
		if len(lines) == most {
			return lines
		}
		lines = append(lines, line{text: m.theme.bad.Render("!") + " " + m.truncate(termtext.Printable(f.Text), m.width-2)})
	}
	return lines
}
