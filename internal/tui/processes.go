package tui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"ration/internal/humanfmt"
	"ration/internal/node"
	"ration/internal/termtext"
	"ration/machine"
)

// processRow is a process and its use of one device.
type processRow struct {
	job *machine.Job // nil for a process in no job
	*machine.Process
	*machine.Holding
	depth int              // depth in the tree of the job's processes
	use   *machine.HostUse // nil if unknown
}

// id identifies a row, even if a PID or a slot is reused.
func (r processRow) id() string {
	path := ""
	if r.job != nil {
		path = r.job.Path
	}
	return fmt.Sprint(path, " ", r.Slot, " ", r.PID, " ", r.HostPID, " ", r.Joined.UnixNano(), " ", r.Device)
}

// processRows returns the processes to show: of one job, or of all shown jobs and those in no job.
func (m *Model) processRows() (out []processRow) {
	if d, ok := m.page.(*details); ok {
		return m.sorted(m.rowsOf(d.job(m), true))
	}
	jobs := m.jobs()
	for _, j := range jobs {
		if m.allJobs || j.Path == m.job.id {
			rows := m.rowsOf(j, m.matchesJob(j))
			if m.Tree { // the processes of a job stay together
				rows = m.sorted(rows)
			}
			out = append(out, rows...)
		}
	}
	if m.allJobs {
		for _, o := range m.sample.Outside {
			r := m.outsideRow(o)
			if m.choosesOutside(o) && (m.matchesProcess(r) || m.matches(noJob)) {
				out = append(out, r)
			}
		}
	}
	if m.Tree {
		return out
	}
	return m.sorted(out)
}

// rowsOf returns the processes of a job, or those that match the filter.
func (m *Model) rowsOf(j *machine.Job, all bool) (out []processRow) {
	for i := range j.Processes {
		p := &j.Processes[i]
		row := m.rowOf(j, p)
		if !all && !m.matchesProcess(row) {
			continue
		}
		if len(p.Holdings) == 0 {
			out = append(out, row)
		}
		for n := range p.Holdings {
			row.Holding = &p.Holdings[n]
			out = append(out, row)
		}
	}
	return out
}

// rowOf returns a row of a job's process, without a device.
func (m *Model) rowOf(j *machine.Job, p *machine.Process) processRow {
	return processRow{job: j, Process: p, Holding: &machine.Holding{}, use: cmp.Or(m.host.of[p.Local], p.Host)}
}

// outsideRow is the row of a process that is in no job.
func (m *Model) outsideRow(o machine.Outside) processRow {
	return processRow{use: m.host.of[o.Local], Process: &machine.Process{Local: o.Local, Slot: -1, Verified: o.UID >= 0, PID: o.PID, HostPID: o.PID, UID: o.UID, User: o.User,
		Name: cmp.Or(o.Name, "?"), State: machine.Live, Container: o.Container}, Holding: &machine.Holding{Device: o.Device, Total: o.Used, Peak: o.Used, Data: o.Used}}
}

// sorted sorts rows. In a tree it sorts the children of each process.
func (m *Model) sorted(rows []processRow) []processRow {
	slices.SortStableFunc(rows, func(a, b processRow) int {
		order := 0
		switch m.Processes.Sort {
		case "mem":
			order = cmp.Compare(b.Total, a.Total)
		case "cpu":
			order = cmp.Compare(b.cpu(), a.cpu())
		case "rss":
			order = cmp.Compare(b.rss(), a.rss())
		case "time":
			order = cmp.Compare(percentOf(b), percentOf(a))
		case "user":
			order = cmp.Compare(a.User, b.User)
		case "name":
			order = cmp.Compare(a.Name, b.Name)
		case "command":
			order = cmp.Compare(a.command(), b.command())
		case "joined":
			order = b.Joined.Compare(a.Joined)
		}
		order = cmp.Or(order, cmp.Compare(a.PID, b.PID), cmp.Compare(a.Device, b.Device))
		if m.Processes.Reverse {
			return -order
		}
		return order
	})
	if !m.Tree {
		return rows
	}
	type key struct{ slot, pid int }
	byProcess := map[key][]processRow{}
	var processes []machine.Process
	for _, r := range rows {
		k := key{r.Slot, r.PID}
		if byProcess[k] == nil {
			processes = append(processes, *r.Process)
		}
		byProcess[k] = append(byProcess[k], r)
	}
	var out []processRow
	for p, depth := range node.Tree(processes) {
		for _, r := range byProcess[key{p.Slot, p.PID}] {
			r.depth = depth
			out = append(out, r)
		}
	}
	return out
}

func percentOf(r processRow) float64 {
	if r.Time == nil {
		return -1
	}
	return r.Time.Percent
}

func (m *Model) processIDs() (ids []string) {
	for _, r := range m.processRows() {
		ids = append(ids, r.id())
	}
	return ids
}

// selectedProcess returns the row with the cursor, or nil.
func (m *Model) selectedProcess() *processRow {
	rows := m.processRows()
	if i := slices.IndexFunc(rows, func(r processRow) bool { return r.id() == m.process.id }); i >= 0 {
		return &rows[i]
	}
	return nil
}

const (
	shareBarWidth = 12
	noJob         = "in no job"
)

func (m *Model) processColumns() []column[processRow] {
	size := func(of func(r processRow) uint64) func(processRow) string {
		return func(r processRow) string { return humanfmt.Short(of(r)) }
	}
	ofCompute := func(text func(*machine.ProcessCompute) string) func(processRow) string {
		return func(r processRow) string {
			if r.Compute == nil {
				return ""
			}
			return text(r.Compute)
		}
	}
	return []column[processRow]{
		{title: "PID", right: true, sort: "PID", text: func(r processRow) string { return claim(r, fmt.Sprint(r.PID)) }},
		{title: "HOST PID", right: true, drop: 5, text: func(r processRow) string { return claim(r, fmt.Sprint(r.HostPID)) },
			needed: func(r processRow) bool { return r.HostPID != 0 && r.HostPID != r.PID }},
		{title: "USER", drop: 4, sort: "user", text: func(r processRow) string { return cmp.Or(r.User, "?") }},
		{title: "STATE", drop: 3, text: func(r processRow) string { return r.State }, needed: func(r processRow) bool { return r.State != machine.Live }},
		{title: "DEV", right: true, drop: 1, text: func(r processRow) string { return fmt.Sprint(r.Device) }, needed: func(r processRow) bool { return r.Device > 0 }},
		{title: "CONTEXT", right: true, drop: 9, text: size(func(r processRow) uint64 { return r.Context }), needed: func(r processRow) bool { return r.Context > 0 }},
		{title: "MODULE", right: true, drop: 10, text: size(func(r processRow) uint64 { return r.Module }), needed: func(r processRow) bool { return r.Module > 0 }},
		{title: "DATA", right: true, drop: 8, text: size(func(r processRow) uint64 { return r.Data }), needed: func(r processRow) bool { return r.Data != r.Total }},
		{title: "DRIVER", right: true, drop: 11, text: size(func(r processRow) uint64 { return r.Overhead }), needed: func(r processRow) bool { return r.Overhead > 0 }},
		{title: "PEAK", right: true, drop: 7, text: size(func(r processRow) uint64 { return r.Peak })},
		{title: "HOLDS", right: true, sort: "mem", text: size(func(r processRow) uint64 { return r.Total })},
		{title: "OF LIMIT", drop: 12, text: m.shareBar, needed: func(r processRow) bool { return r.limit() > 0 }},
		{title: "SLICE", right: true, drop: 1, text: func(r processRow) string { return node.SliceText(r.Compute) },
			needed: func(r processRow) bool { return r.Compute != nil && r.Compute.State != "" }},
		{title: "WORK", right: true, drop: 9, text: ofCompute(func(c *machine.ProcessCompute) string { return fmt.Sprint(c.Working) }), needed: func(r processRow) bool { return r.Compute != nil }},
		{title: "TIME", right: true, drop: 2, sort: "time", text: func(r processRow) string { return node.TimeText(r.Time) }, needed: func(r processRow) bool { return r.Time != nil }},
		{title: "WAITED", right: true, drop: 3, text: ofCompute(func(c *machine.ProcessCompute) string { return node.ShortTime(c.Waited) }),
			needed: func(r processRow) bool { return r.Compute != nil && r.Compute.Waited > 0 }},
		{title: "CPU", right: true, drop: 3, sort: "cpu", text: func(r processRow) string { return cpuText(r.use) }, needed: func(r processRow) bool { return r.use != nil }},
		{title: "RSS", right: true, drop: 3, sort: "rss", text: func(r processRow) string { return rssText(r.use) }, needed: func(r processRow) bool { return r.use != nil }},
		{title: "SINCE", right: true, drop: 6, sort: "joined", text: func(r processRow) string { return m.since(r.Joined) }},
		{title: "JOB", drop: 2, text: func(r processRow) string {
			switch {
			case r.job == nil:
				return noJob
			case r.job.Name == "":
				return m.shortTitle(r.job, m.nameWidth())
			}
			return r.job.Name
		}, needed: func(processRow) bool { _, one := m.page.(*details); return m.allJobs && !one }},
		{title: "IN", drop: 8, text: func(r processRow) string { return r.Container }, needed: func(r processRow) bool { return r.Container != "" }},
		{title: "NAME", drop: 3, sort: "name", text: func(r processRow) string { return claim(r, r.Name) },
			needed: processRow.renamed},
		{title: "COMMAND", sort: "command", text: func(processRow) string { return "" }, fill: func(r processRow, width int) string {
			text := r.command()
			if m.Tree && r.depth > 0 {
				text = strings.Repeat("  ", r.depth-1) + m.theme.branch + text
			}
			return m.truncate(termtext.Printable(text), width)
		}},
	}
}

// claim marks a text that only the job claims about a process.
func claim(r processRow, text string) string { return humanfmt.Claim(text, r.Verified) }

// limit returns the job's limit on the device, or 0.
func (r processRow) limit() uint64 {
	if r.job == nil {
		return 0
	}
	for _, d := range r.job.Devices {
		if d.Device == r.Device && d.Limited {
			return d.Limit
		}
	}
	return 0
}

// shareBar draws the fraction of the job's limit that a process holds.
func (m *Model) shareBar(r processRow) string {
	limit := r.limit()
	if limit == 0 {
		return ""
	}
	cells, _ := m.theme.bar.Bar(share(r.Total, limit), shareBarWidth)
	return strings.Join(cells, "")
}

// since formats how long ago a time was, in its largest unit; "" for the zero time.
func (m *Model) since(t time.Time) string {
	switch d := m.sample.Time.Sub(t); {
	case t.IsZero():
		return ""
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(0, int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

// processLines returns the header of the processes, and a line for each that is shown.
func (m *Model) processLines(all, shown []processRow, focused bool) (header line, lines []line) {
	t := table[processRow]{columns: m.processColumns(), settings: &m.Processes, down: descending, least: 0, wanted: 14}
	titles, texts := t.render(m, m.width, all, shown)
	for i, text := range texts {
		r := shown[i]
		style := plain
		switch r.State {
		case machine.Stopped, machine.Ending:
			style = m.theme.warn
		case machine.Dead:
			style = m.theme.bad
		}
		mark := m.mark(focused && r.id() == m.process.id, true)
		lines = append(lines, line{mark + style.Render(text), target{processTarget, r.id()}})
	}
	return line{text: "  " + m.theme.faint.Render(titles)}, lines
}
