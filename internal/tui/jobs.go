package tui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/node"
	"ration/internal/termtext"
	"ration/machine"
)

// jobRow is a job and its use of one device.
type jobRow struct {
	job   *machine.Job
	dev   node.DeviceRange
	none  bool // dev is not set
	first bool // first row of the job
}

// jobRows returns a row for each device of each shown job. It leaves out devices that a job has
// never used, if it has used others; the details show them.
func (m *Model) jobRows() (out []jobRow) {
	for _, j := range m.jobs() {
		ranges := node.OpenRanges(j)
		if slices.ContainsFunc(ranges, func(r node.DeviceRange) bool { return !r.Unused() }) {
			ranges = slices.DeleteFunc(ranges, node.DeviceRange.Unused)
		}
		for i, d := range ranges {
			out = append(out, jobRow{j, d, false, i == 0})
		}
		if len(ranges) == 0 {
			out = append(out, jobRow{j, node.DeviceRange{}, true, true})
		}
	}
	return out
}

// once returns a text in the first row of a job only.
func once(text func(j *machine.Job) string) func(jobRow) string {
	return func(r jobRow) string {
		if !r.first {
			return ""
		}
		return text(r.job)
	}
}

// jobColumns are the columns of the jobs.
func (m *Model) jobColumns() []column[jobRow] {
	faint := func(jobRow) *lipgloss.Style { return &m.theme.faint }
	badIf := func(is func(r jobRow) bool, otherwise *lipgloss.Style) func(jobRow) *lipgloss.Style {
		return func(r jobRow) *lipgloss.Style {
			if is(r) {
				return &m.theme.bad
			}
			return otherwise
		}
	}
	return []column[jobRow]{
		{title: "JOB", sort: "name", style: badIf(func(r jobRow) bool { return r.dev.Over() > 0 }, &plain), text: once(func(j *machine.Job) string { return m.shortTitle(j, m.nameWidth()) }), most: func(width int) int { return max(8, width/5) }, note: func(r jobRow) (string, *lipgloss.Style) {
			switch {
			case r.job.Error != "":
				return r.job.Error, &m.theme.bad
			case r.none:
				return r.job.State + ": nothing was used yet", &m.theme.faint
			}
			return "", nil
		}},
		{title: "USER", drop: 4, sort: "user", text: once(func(j *machine.Job) string { return j.Owner }),
			needed: func(r jobRow) bool { return r.job.Owner != m.sample.Jobs[0].Owner }},
		{title: "STATE", drop: 2, text: once(m.stateWord),
			needed: func(r jobRow) bool {
				return m.stateWord(r.job) != machine.Running && r.job.Error == "" && !r.none
			}},
		{title: "DEV", right: true, text: func(r jobRow) string { return r.dev.String() }},
		{title: "bar", drop: 1, fill: func(r jobRow, width int) string { return m.usageBar(r.dev.Device, width) }},
		{title: "USED", right: true, sort: "bytes", text: func(r jobRow) string { return humanfmt.Short(r.dev.Used) },
			style: badIf(func(r jobRow) bool { return r.dev.Over() > 0 || r.dev.Limited && r.dev.Used > r.dev.Limit }, &plain)},
		{title: "LIMIT", right: true, text: func(r jobRow) string {
			if r.job.RationLent {
				return "lent"
			}
			if !r.dev.Limited {
				return "none"
			}
			return humanfmt.Short(r.dev.Limit)
		}},
		{title: "SHARE", right: true, drop: 5, text: func(r jobRow) string {
			if !r.dev.Limited {
				return ""
			}
			return fmt.Sprintf("%.0f%%", 100*shareOfLimit(r.dev.Device))
		}},
		{title: "COMPUTE", right: true, drop: 1, text: func(r jobRow) string { return m.computeText(r.job, r.dev.Device) },
			needed: func(r jobRow) bool { return m.computeText(r.job, r.dev.Device) != "" },
			style:  badIf(func(r jobRow) bool { return unenforced(r.job, r.dev.Device) }, &plain)},
		{title: "TIME", right: true, drop: 3, sort: "busy", text: func(r jobRow) string { return jobTime(r.job, r.dev.Device.Device) },
			needed: func(r jobRow) bool { return jobTime(r.job, r.dev.Device.Device) != "" }},
		{title: "PEAK", right: true, drop: 7, text: func(r jobRow) string { return humanfmt.Short(r.dev.Peak) }, style: faint},
		{title: "PROC", right: true, drop: 8, text: once(func(j *machine.Job) string { return fmt.Sprint(j.ProcessCount()) }), style: faint},
		{title: "AGE", right: true, drop: 9, sort: "age", text: once(func(j *machine.Job) string { return m.since(j.Created) }), style: faint},
		{title: "REFUSED", right: true, drop: 3, text: func(r jobRow) string { return humanfmt.Count(m.refused(r)) },
			style: badIf(func(r jobRow) bool { return m.refused(r) > 0 }, &m.theme.faint)},
	}
}

// refused returns the refused requests of a row. The rations that the policy refused are in the first row of a job.
func (m *Model) refused(r jobRow) uint64 {
	if r.first {
		return r.dev.Refused + node.DeniedTo(m.sample.Denied, r.job)
	}
	return r.dev.Refused
}

// stateWord returns a job's state: its place in the queue, whether it sleeps, or should and cannot, or otherwise whether it
// runs.
func (m *Model) stateWord(j *machine.Job) string {
	if w := node.WaitingAt(&m.sample.Machine, j.Path); w != nil && j.State == node.Waiting {
		return fmt.Sprintf("waiting, place %d", w.Place)
	}
	if j.Sleep == "" && j.CannotSleep != "" && j.State != machine.Ended {
		return "cannot sleep"
	}
	return node.StateWords(j)
}

// nameWidth is the width for a job's name.
func (m *Model) nameWidth() int { return max(8, (m.width-2)/5) }

// jobLines returns the table of jobs, or the part around the selected job.
func (m *Model) jobLines(room int) (header line, lines []line) {
	all := m.jobRows()
	selected := slices.IndexFunc(all, func(r jobRow) bool { return r.job.Path == m.job.id })
	first, last := window(len(all), max(1, room), max(0, selected))
	t := table[jobRow]{columns: m.jobColumns(), settings: &m.Jobs, down: descending, least: 4, wanted: 16}
	titles, texts := t.render(m, m.width, all, all[first:last])
	more := ""
	if first > 0 {
		more += fmt.Sprintf(" %s%d", m.theme.up, first)
	}
	if last < len(all) {
		more += fmt.Sprintf(" %s%d", m.theme.down, len(all)-last)
	}
	for i, text := range texts {
		r := all[first+i]
		mark := m.mark(r.first && r.job.Path == m.job.id, m.focus == jobsTable)
		lines = append(lines, line{mark + text, target{jobTarget, r.job.Path}})
	}
	return line{text: "  " + m.theme.faint.Render(overlay(titles, "JOB"+more))}, lines
}

// mark returns the mark before a row; it depends on whether the table has the focus.
func (m *Model) mark(selected, focused bool) string {
	switch {
	case selected && focused:
		return m.theme.bold.Render(m.theme.cursor) + " "
	case selected:
		return m.theme.faint.Render(m.theme.otherCursor) + " "
	}
	return "  "
}

// overlay writes text over the blanks at the beginning of a header, if it fits.
func overlay(header, text string) string {
	if n := termtext.Width(text); n < len(header) && len(header) > 3 && n > 3 && strings.TrimSpace(header[3:n]) == "" {
		return text + header[n:]
	}
	return header
}

// shortTitle returns a job's name, or the end of its path, where paths differ.
func (m *Model) shortTitle(j *machine.Job, width int) string {
	title := termtext.Printable(cmp.Or(j.Name, strings.TrimSuffix(j.Path, "/"+job.RegionName))) // all regions have the same file name
	if excess := termtext.Width(title) - width; j.Name == "" && excess > 0 {
		return ansi.TruncateLeft(title, excess+1, m.theme.ellipsis)
	}
	return m.truncate(title, width)
}
