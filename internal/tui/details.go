package tui

import (
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"ration/internal/humanfmt"
	"ration/internal/node"
	"ration/internal/termtext"
	"ration/machine"
)

// details is the page with all details of one job.
type details struct {
	last   machine.Job // as of the last sample that had it
	scroll scroller
	follow bool // scroll to the selected process instead
}

// newDetails opens the details of the selected job, if there is one.
func (m *Model) newDetails() page {
	if j := m.shownJob(); j != nil {
		return &details{last: *j}
	}
	return overview{}
}

// job returns the current job, or its last known state.
func (d *details) job(m *Model) *machine.Job {
	if j := m.jobAt(d.last.Path); j != nil {
		d.last = *j
	}
	return &d.last
}

func (d *details) hints(m *Model) []hint {
	return []hint{{"Esc", "back"}, {"l", "limit"}, {"x", "end"}, {"k", "signal"}, {m.theme.arrows, "process"}, {"PgDn", "more"}, {"s", "sort: " + m.Processes.Sort}, {"t", "tree"}}
}

func (d *details) choose(*Model, string) {}

func (d *details) press(m *Model, key string) tea.Cmd {
	d.follow = false
	switch key {
	case "esc", "q", "enter", "left":
		m.back()
	case "up", "down":
		by := map[string]int{"up": -1, "down": +1}[key]
		m.process.move(m.processIDs(), by)
		d.follow = true
	default:
		if !d.scroll.press(m, key) {
			return m.pressShared(key, "l x k K t s r space ? h f1 m")
		}
	}
	return nil
}

func (d *details) body(m *Model, height int) []line {
	lines := d.all(m)
	shown := d.scroll.shown(lines, height)
	if isSelected := func(l line) bool { return l.target == target{processTarget, m.process.id} }; d.follow && !slices.ContainsFunc(shown, isSelected) {
		if at := slices.IndexFunc(lines, isSelected); at >= 0 {
			first, _ := window(len(lines), height, at)
			d.scroll = scroller(first)
			shown = d.scroll.shown(lines, height)
		}
	}
	return shown
}

// all returns all lines, including those that do not fit.
func (d *details) all(m *Model) (lines []line) {
	j := d.job(m)
	add := func(more ...line) { lines = append(lines, more...) }
	add(m.rule("job " + termtext.Printable(j.Title())))
	state := node.StateText(*j, m.sample.Time)
	if m.jobAt(j.Path) == nil {
		state += ", and no longer there: this is how it was last"
	}
	owner := j.Owner
	if j.Launcher != "" && j.Launcher != j.Owner {
		owner += ", launched by " + j.Launcher
	}
	queue := ""
	if w := node.WaitingAt(&m.sample.Machine, j.Path); w != nil && j.State == node.Waiting {
		queue = node.WaitingText(w)
	}
	for _, f := range []struct{ name, text string }{
		{"state", state}, {"queue", queue}, {"sleep", node.SleepText(j, m.sample.Time)}, {"owner", owner}, {"command", strings.Join(j.Command, " ")}, {"region", j.Path}, {"problem", j.Error},
	} {
		if f.text == "" {
			continue
		}
		label := "  " + termtext.PadRight(f.name, 9)
		add(m.labelled(m.theme.faint.Render(label), f.text, len(label))...)
	}
	if j.State == node.Waiting { // it has no limits, processes and refusals yet
		return lines
	}
	for i, r := range node.OpenRanges(j) {
		add(d.deviceLines(m, j, r, i == 0)...)
	}
	rows := m.processRows()
	add(m.rule(fmt.Sprintf("processes, by %s", m.Processes.Sort)))
	if len(rows) == 0 {
		add(line{text: m.theme.faint.Render("  none")})
	} else {
		header, shown := m.processLines(rows, rows, true)
		add(header)
		add(shown...)
	}
	if o := j.Omitted; o != nil && o.Processes > 0 {
		add(line{text: m.theme.faint.Render(fmt.Sprintf("  and %s more (ration ps %s)", humanfmt.Count(o.Processes), termtext.Printable(j.Path)))})
	}
	add(m.rule("refusals and deaths"))
	events := m.eventsOf(j, false)
	if node.DeniedTo(m.sample.Denied, j) > 0 {
		for _, d := range m.deniedGroups(func(d *machine.Denied) bool { return d.UID == j.UID }) {
			events = append(events, d.event)
		}
		m.sortEvents(events)
	}
	add(m.linesOf(events)...)
	return lines
}

// deviceLines returns a job's limits on a device, its use of it, and its history.
// As in the list, the rations that the policy refused are with the first.
func (d *details) deviceLines(m *Model, j *machine.Job, r node.DeviceRange, first bool) (lines []line) {
	lines = append(lines, m.rule("device "+r.String()))
	limit := "no limit"
	if r.Limited {
		limit = fmt.Sprintf("of %s (%.0f %%)", humanfmt.Bytes(r.Limit), 100*shareOfLimit(r.Device))
	}
	text := fmt.Sprintf("%s %s, peak %s, %s refused", humanfmt.Bytes(r.Used), limit, humanfmt.Bytes(r.Peak), humanfmt.Plural(int(r.Refused), "request", "requests"))
	if n := node.DeniedTo(m.sample.Denied, j); n > 0 && first {
		text += ", " + humanfmt.Plural(int(n), "ration", "rations") + " refused by the policy"
	}
	lines = append(lines, m.paragraph(text, 2)...)
	if r.Over() > 0 {
		text := fmt.Sprintf("over its limit by %s: the driver counts %s", humanfmt.Bytes(r.Over()), humanfmt.Bytes(r.Limit+r.Over()))
		lines = append(lines, line{text: "  " + m.theme.bad.Render(m.truncate(text, m.width-2))})
	}
	if r.Compute != nil {
		text := r.Compute.Sentence()
		if unenforced(j, r.Device) {
			text += "; " + machine.NotEnforced
		}
		lines = append(lines, m.paragraph(text, 2)...)
	}
	points := m.history[onDevice{j.Path, r.Device.Device}]
	if len(points) < 2 || r.Unused() {
		return lines
	}
	most := max(r.Peak, 1)
	if r.Limited {
		most = max(most, r.Limit)
	}
	used := func(p point) float64 { return float64(p.used) / float64(most) }
	percent := func(p point) float64 { return p.percent / 100 }
	lines = append(lines, d.sparkLine(m, "memory", used, points, "to "+humanfmt.Bytes(most)))
	if slices.ContainsFunc(points, func(p point) bool { return p.percent >= 0 }) {
		lines = append(lines, d.sparkLine(m, "time", percent, points, "to 100%"))
	}
	return lines
}

// sparkLine draws a history, with its length in time and the value of a full cell.
func (d *details) sparkLine(m *Model, name string, value func(point) float64, points []point, full string) line {
	label := "  " + termtext.PadRight(name, 8)
	width := max(1, m.width-len(label)-termtext.Width(full)-len(", last 99m ")-1)
	span := points[len(points)-1].time.Sub(points[0].time).Round(time.Second)
	return line{text: m.theme.faint.Render(label) + m.theme.ok.Render(m.sparkline(m.cells(points, value, width))) + " " + full + ", last " + node.ShortTime(uint64(span))}
}
