package tui

import (
	"strings"

	"charm.land/lipgloss/v2"

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
	switch {
	case !d.Limited:
		return &m.theme.ok
	case beyond:
		return &m.theme.bad
	}
	return m.loadStyle(shareOfLimit(d))
}

// loadStyle is the colour of a share that is used.
func (m *Model) loadStyle(share float64) *lipgloss.Style {
	switch {
	case share > 0.95:
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
