package tui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"ration/internal/humanfmt"
	"ration/internal/job"
)

// sortKey is what processes are sorted by.
type sortKey int

// Keys, in the order the user goes through them. Each starts with what one looks
// for first: the most, the lowest, the latest.
const (
	byBytes sortKey = iota
	byPID
	byName
	byJoined
	sortKeys
)

func (k sortKey) String() string { return [...]string{"bytes", "PID", "name", "joined"}[k] }

// entry is a process and what it has of one device.
type entry struct {
	job string
	of  *job.Status
	job.Process
	job.Holding
}

// entries are the processes to show, sorted.
func (m *Model) entries() (out []entry) {
	for i := range m.sample.Jobs {
		s := &m.sample.Jobs[i]
		if !m.all && s.Path != m.selected {
			continue
		}
		for _, p := range s.Processes {
			if len(p.Holdings) == 0 {
				out = append(out, entry{s.Title(), s, p, job.Holding{}})
			}
			for _, h := range p.Holdings {
				out = append(out, entry{s.Title(), s, p, h})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b entry) int {
		order := 0
		switch m.key {
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

// processColumn is one of the table of processes.
type processColumn struct {
	title string
	right bool
	goes  int     // the higher, the sooner it goes where there is no room; 0 stays
	key   sortKey // that it shows, if that is what is sorted by; or noKey
	text  func(m *Model, e entry) string
	shown func(e entry) bool // nil, or whether an entry makes it worth its room
}

// noKey is that of a column by which nothing is sorted.
const noKey sortKey = -1

// Widths.
const (
	miniBar   = 12
	leastName = 14
)

var processColumns = []processColumn{
	{"PID", true, 0, byPID, func(_ *Model, e entry) string { return fmt.Sprint(e.PID) }, nil},
	{"HOST PID", true, 5, noKey, func(_ *Model, e entry) string { return fmt.Sprint(e.HostPID) },
		func(e entry) bool { return e.HostPID != 0 && e.HostPID != e.PID }},
	{"USER", false, 4, noKey, func(_ *Model, e entry) string { return e.User }, nil},
	{"STATE", false, 3, noKey, func(_ *Model, e entry) string { return e.State }, nil},
	{"DEV", true, 1, noKey, func(_ *Model, e entry) string { return fmt.Sprint(e.Device) }, func(e entry) bool { return e.Device > 0 }},
	{"CONTEXT", true, 9, noKey, func(_ *Model, e entry) string { return humanfmt.Short(e.Context) }, func(e entry) bool { return e.Context > 0 }},
	{"MODULE", true, 10, noKey, func(_ *Model, e entry) string { return humanfmt.Short(e.Module) }, func(e entry) bool { return e.Module > 0 }},
	{"DATA", true, 8, noKey, func(_ *Model, e entry) string { return humanfmt.Short(e.Data) }, func(e entry) bool { return e.Data != e.Total }},
	{"DRIVER", true, 11, noKey, func(_ *Model, e entry) string { return humanfmt.Short(e.Overhead) }, func(e entry) bool { return e.Overhead > 0 }},
	{"PEAK", true, 7, noKey, func(_ *Model, e entry) string { return humanfmt.Short(e.Peak) }, nil},
	{"HOLDS", true, 0, byBytes, func(_ *Model, e entry) string { return humanfmt.Short(e.Total) }, nil},
	{"OF LIMIT", false, 12, noKey, func(m *Model, e entry) string { return m.miniBar(e) }, func(e entry) bool { return e.limit() > 0 }},
	{"SINCE", true, 6, byJoined, func(m *Model, e entry) string { return age(m.sample.At.Sub(time.Unix(0, e.Joined))) }, nil},
	{"JOB", false, 2, noKey, func(_ *Model, e entry) string { return e.job }, nil},
	{"NAME", false, 0, byName, func(_ *Model, e entry) string { return e.Name }, nil},
}

// limit is what all processes of the job may have together.
func (e entry) limit() uint64 {
	for _, d := range e.of.Devices {
		if d.Device == e.Device && d.Limited {
			return d.Limit
		}
	}
	return 0
}

// miniBar is the share of the limit that a process holds.
func (m *Model) miniBar(e entry) string {
	limit := e.limit()
	if limit == 0 {
		return ""
	}
	n := min(int(float64(e.Total)/float64(limit)*miniBar+0.5), miniBar)
	return strings.Repeat(m.look.full, n) + strings.Repeat(m.look.empty, miniBar-n)
}

// age is a time span at a glance.
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

// processLines are the table of processes: titles, and a line for each of some.
func (m *Model) processLines(width int, all, some []entry) (title string, lines []string) {
	var columns []processColumn
	widths := map[string]int{}
	for _, c := range processColumns {
		if c.shown != nil && !slices.ContainsFunc(all, c.shown) || c.title == "JOB" && !m.all {
			continue
		}
		w := cells(m.heading(c))
		for _, e := range some {
			w = max(w, cells(printable(c.text(m, e))))
		}
		columns, widths[c.title] = append(columns, c), min(w, 24)
	}
	for {
		room := width - 2
		for _, c := range columns[:len(columns)-1] {
			room -= widths[c.title] + 2
		}
		if widths["NAME"] = room; room >= leastName || !m.drop(&columns) {
			break
		}
	}
	cell := func(c processColumn, text string) string {
		w := max(widths[c.title], 0)
		text = m.cut(text, w)
		if c.right {
			return pad(text, w)
		}
		return pad(text, -w)
	}
	row := func(text func(c processColumn) string) string {
		out := make([]string, len(columns))
		for i, c := range columns {
			out[i] = cell(c, text(c))
		}
		return "  " + strings.Join(out, "  ")
	}
	title = row(m.heading)
	for _, e := range some {
		line := row(func(c processColumn) string { return printable(c.text(m, e)) })
		switch e.State {
		case job.Stopped:
			line = m.look.near.Render(line)
		case job.Dead:
			line = m.look.bad.Render(line)
		}
		lines = append(lines, line)
	}
	return title, lines
}

// heading is a column's title, marked if it is what is sorted by.
func (m *Model) heading(c processColumn) string {
	if c.key == noKey || c.key != m.key {
		return c.title
	}
	if falls := m.key == byBytes || m.key == byJoined; falls != m.reverse {
		return c.title + m.look.down
	}
	return c.title + m.look.up
}

// drop takes away the column that is missed least.
func (m *Model) drop(columns *[]processColumn) bool {
	worst := -1
	for i, c := range *columns {
		if c.goes > 0 && (c.key == noKey || c.key != m.key) && (worst < 0 || c.goes > (*columns)[worst].goes) {
			worst = i
		}
	}
	if worst >= 0 {
		*columns = slices.Delete(*columns, worst, worst+1)
	}
	return worst >= 0
}
