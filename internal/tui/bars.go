package tui

import (
	"strings"

	"charm.land/lipgloss/v2"

	"ration/machine"
)

// usageBar draws the usage of a device. Its full width is the limit, or the peak if that is higher,
// or the size of the device if there is no limit.
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
	barWidth := width - 1 // the last cell is for a mark at full width
	column := func(bytes uint64) int { return int(share(bytes, scale)*float64(barWidth) + 0.5) }
	limit, peak := -1, -1
	if d.Limited {
		limit = column(d.Limit)
	}
	if d.Peak > d.Used {
		peak = column(d.Peak)
	}
	cells, filled := m.theme.bar.Bar(share(d.Used, scale), barWidth)
	return m.drawBar(append(cells, " "), filled, limit, peak, func(i int) *lipgloss.Style {
		switch {
		case !d.Limited:
			return &m.theme.ok
		case i > limit:
			return &m.theme.bad
		}
		return m.loadStyle(shareOfLimit(d))
	})
}

// gpuBar draws the used part of a device, with a mark at the sum of the limits.
func (m *Model) gpuBar(g machine.GPU, width int) string {
	if width == 0 || g.Total == 0 || g.Failed {
		return strings.Repeat(" ", width)
	}
	limit := -1
	if g.Rations > 0 && g.Rations <= g.Total {
		limit = min(int(share(g.Rations, g.Total)*float64(width)), width-1)
	}
	cells, filled := m.theme.bar.Bar(share(g.Used, g.Total), width)
	return m.drawBar(cells, filled, limit, -1, func(int) *lipgloss.Style { return m.loadStyle(share(g.Used, g.Total)) })
}

// drawBar draws the cells of a bar, with marks at the columns of a limit and of a peak. It renders
// adjacent cells of one style together.
func (m *Model) drawBar(cells []string, filled, limit, peak int, used func(i int) *lipgloss.Style) string {
	var out strings.Builder
	var style *lipgloss.Style // style of text
	text := ""                // not rendered yet
	flush := func() {
		if text != "" {
			out.WriteString(style.Render(text))
		}
		text = ""
	}
	for i, cell := range cells {
		next := &m.theme.faint
		switch {
		case i == limit:
			next, cell = &m.theme.bold, m.theme.limit
		case i < filled:
			next = used(i)
		case i == peak:
			next, cell = &m.theme.warn, m.theme.peak
		}
		if next != style {
			flush()
			style = next
		}
		text += cell
	}
	flush()
	return out.String()
}

// loadStyle returns the colour for a used fraction.
func (m *Model) loadStyle(share float64) *lipgloss.Style {
	switch {
	case share > 0.95:
		return &m.theme.bad
	case share > 0.8:
		return &m.theme.warn
	}
	return &m.theme.ok
}

// share returns part/whole, or 0 if whole is 0.
func share(part, whole uint64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

func shareOfLimit(d machine.Device) float64 { return share(d.Used, d.Limit) }
