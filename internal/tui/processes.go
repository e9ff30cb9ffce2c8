package tui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"ration/internal/humanfmt"
	"ration/internal/termtext"
	"ration/machine"
)

// sortKey is a key to sort processes by.
type sortKey int

// Sort keys, in the order in which the key s goes through them. The order of each
// begins with what is most often looked for: the most bytes, the lowest PID, the
// latest to join.
const (
	byBytes sortKey = iota
	byPID
	byName
	byJoined
	sortKeys
)

func (k sortKey) String() string { return [...]string{"bytes", "PID", "name", "joined"}[k] }

// processRow is a process and its use of one device.
type processRow struct {
	job *machine.Job
	machine.Process
	machine.Holding
}

// processRows returns the processes to show, sorted.
func (m *Model) processRows() (out []processRow) {
	for i := range m.sample.Jobs {
		s := &m.sample.Jobs[i]
		if !m.allJobs && s.Path != m.selected {
			continue
		}
		for _, p := range s.Processes {
			if len(p.Holdings) == 0 {
				out = append(out, processRow{s, p, machine.Holding{}})
			}
			for _, h := range p.Holdings {
				out = append(out, processRow{s, p, h})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b processRow) int {
		order := 0
		switch m.sortBy {
		case byBytes:
			order = cmp.Compare(b.Total, a.Total)
		case byName:
			order = cmp.Compare(a.Name, b.Name)
		case byJoined:
			order = cmp.Compare(b.Joined, a.Joined)
		}
		order = cmp.Or(order, cmp.Compare(a.PID, b.PID), cmp.Compare(a.Device, b.Device))
		if m.reverse {
			return -order
		}
		return order
	})
	return out
}

// processColumn is a column of the table of processes.
type processColumn struct {
	title  string
	right  bool    // aligned
	drop   int     // columns with the highest are dropped first where there is no room; 0 stays
	key    sortKey // that sorts by this column, or noKey
	text   func(m *Model, r processRow) string
	needed func(r processRow) bool // nil: always; otherwise the column is shown if any row needs it
}

// noKey is the key of a column that nothing is sorted by.
const noKey sortKey = -1

// Widths.
const (
	shareBarWidth = 12
	minNameWidth  = 14
)

var processColumns = []processColumn{
	{"PID", true, 0, byPID, func(_ *Model, r processRow) string { return claim(r, fmt.Sprint(r.PID)) }, nil},
	{"HOST PID", true, 5, noKey, func(_ *Model, r processRow) string { return claim(r, fmt.Sprint(r.HostPID)) },
		func(r processRow) bool { return r.HostPID != 0 && r.HostPID != r.PID }},
	{"USER", false, 4, noKey, func(_ *Model, r processRow) string { return r.User }, nil},
	{"STATE", false, 3, noKey, func(_ *Model, r processRow) string { return r.State }, nil},
	{"DEV", true, 1, noKey, func(_ *Model, r processRow) string { return fmt.Sprint(r.Device) }, func(r processRow) bool { return r.Device > 0 }},
	{"CONTEXT", true, 9, noKey, func(_ *Model, r processRow) string { return humanfmt.Short(r.Context) }, func(r processRow) bool { return r.Context > 0 }},
	{"MODULE", true, 10, noKey, func(_ *Model, r processRow) string { return humanfmt.Short(r.Module) }, func(r processRow) bool { return r.Module > 0 }},
	{"DATA", true, 8, noKey, func(_ *Model, r processRow) string { return humanfmt.Short(r.Data) }, func(r processRow) bool { return r.Data != r.Total }},
	{"DRIVER", true, 11, noKey, func(_ *Model, r processRow) string { return humanfmt.Short(r.Overhead) }, func(r processRow) bool { return r.Overhead > 0 }},
	{"PEAK", true, 7, noKey, func(_ *Model, r processRow) string { return humanfmt.Short(r.Peak) }, nil},
	{"HOLDS", true, 0, byBytes, func(_ *Model, r processRow) string { return humanfmt.Short(r.Total) }, nil},
	{"OF LIMIT", false, 12, noKey, func(m *Model, r processRow) string { return m.shareBar(r) }, func(r processRow) bool { return r.limit() > 0 }},
	{"SLICE", true, 1, noKey, func(_ *Model, r processRow) string { return sliceText(r.Compute) }, func(r processRow) bool { return r.Compute != nil && r.Compute.State != "" }},
	{"WORK", true, 9, noKey, func(_ *Model, r processRow) string { return workText(r.Compute) }, func(r processRow) bool { return r.Compute != nil }},
	{"TIME", true, 2, noKey, func(m *Model, r processRow) string { return m.timeText(r.Time) }, func(r processRow) bool { return r.Time != nil }},
	{"WAITED", true, 3, noKey, func(_ *Model, r processRow) string { return waitedText(r.Compute) }, func(r processRow) bool { return r.Compute != nil && r.Compute.Waited > 0 }},
	{"SINCE", true, 6, byJoined, func(m *Model, r processRow) string { return age(m.sample.Time.Sub(time.Unix(0, r.Joined))) }, nil},
	{"JOB", false, 2, noKey, func(_ *Model, r processRow) string { return r.job.Title() }, nil},
	{"NAME", false, 0, byName, func(_ *Model, r processRow) string { return claim(r, r.Name) }, nil},
}

// claim marks what only the job says of a process.
func claim(r processRow, text string) string { return humanfmt.Claim(text, r.Verified) }

// limit returns the job's limit on the device, or 0.
func (r processRow) limit() uint64 {
	for _, d := range r.job.Devices {
		if d.Device == r.Device && d.Limited {
			return d.Limit
		}
	}
	return 0
}

// shareBar draws the share of the job's limit that a process holds.
func (m *Model) shareBar(r processRow) string {
	limit := r.limit()
	if limit == 0 {
		return ""
	}
	cells, _ := m.theme.bar.Bar(float64(r.Total)/float64(limit), shareBarWidth)
	return strings.Join(cells, "")
}

// age renders a time span in its largest unit.
func age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(0, int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// processLines returns the table of processes: its header, and a line for each of the
// shown rows. all rows decide which columns there are, so that scrolling changes none.
func (m *Model) processLines(width int, all, shown []processRow) (header string, lines []string) {
	var columns []processColumn
	widths := map[string]int{} // by title
	for _, c := range processColumns {
		if c.needed != nil && !slices.ContainsFunc(all, c.needed) || c.title == "JOB" && !m.allJobs {
			continue
		}
		w := termtext.Width(m.columnTitle(c))
		for _, r := range shown {
			w = max(w, termtext.Width(termtext.Printable(c.text(m, r))))
		}
		columns, widths[c.title] = append(columns, c), min(w, 24)
	}
	for {
		room := width - 2
		for _, c := range columns[:len(columns)-1] {
			room -= widths[c.title] + 2
		}
		if widths["NAME"] = room; room >= minNameWidth || !m.dropColumn(&columns) {
			break
		}
	}
	cell := func(c processColumn, text string) string {
		w := max(widths[c.title], 0)
		text = m.truncate(text, w)
		if c.right {
			return termtext.PadLeft(text, w)
		}
		return termtext.PadRight(text, w)
	}
	row := func(text func(c processColumn) string) string {
		out := make([]string, len(columns))
		for i, c := range columns {
			out[i] = cell(c, text(c))
		}
		return "  " + strings.Join(out, "  ")
	}
	header = row(m.columnTitle)
	for _, r := range shown {
		line := row(func(c processColumn) string { return termtext.Printable(c.text(m, r)) })
		switch r.State {
		case machine.Stopped, machine.Ending:
			line = m.theme.warn.Render(line)
		case machine.Dead:
			line = m.theme.bad.Render(line)
		}
		lines = append(lines, line)
	}
	return header, lines
}

// columnTitle is a column's title, with a mark if the table is sorted by it.
func (m *Model) columnTitle(c processColumn) string {
	if c.key == noKey || c.key != m.sortBy {
		return c.title
	}
	if descending := m.sortBy == byBytes || m.sortBy == byJoined; descending != m.reverse {
		return c.title + m.theme.down
	}
	return c.title + m.theme.up
}

// dropColumn drops the next column to drop, and reports whether there was one. The
// column that the table is sorted by stays.
func (m *Model) dropColumn(columns *[]processColumn) bool {
	next := -1
	for i, c := range *columns {
		if c.drop > 0 && (c.key == noKey || c.key != m.sortBy) && (next < 0 || c.drop > (*columns)[next].drop) {
			next = i
		}
	}
	if next >= 0 {
		*columns = slices.Delete(*columns, next, next+1)
	}
	return next >= 0
}
