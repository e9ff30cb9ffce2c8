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

// item is something that happened.
type item struct {
	at   time.Time
	text string
	bad  bool
}

// recent is how long a refusal is news.
const recent = 5 * time.Second

// news is what happened, the newest first: refusals, and deaths that we found.
func (m *Model) news() (out []item) {
	for _, s := range m.last {
		for _, f := range job.GroupRefusals(s.Refusals) {
			out = append(out, item{time.Unix(0, f.Time), m.whose(&s, f.Device) + m.refusal(f, m.known[s.Path]), true})
		}
	}
	for _, d := range m.deaths {
		held := uint64(0)
		for _, h := range d.process.Holdings {
			held += h.Total
		}
		text := fmt.Sprintf("%s died holding %s, now free", named(d.process.Name, d.process.PID), humanfmt.Bytes(held))
		if len(m.last) > 1 {
			text = d.job + ": " + text
		}
		out = append(out, item{d.at, text, false})
	}
	slices.SortFunc(out, func(a, b item) int {
		return cmp.Or(cmp.Compare(b.at.UnixNano(), a.at.UnixNano()), cmp.Compare(a.text, b.text))
	})
	return out
}

// whose says which job and device a line is about, where there are several.
func (m *Model) whose(s *job.Status, device int) string {
	var parts []string
	if len(m.last) > 1 {
		parts = append(parts, s.Title())
	}
	if len(s.Devices) > 1 {
		parts = append(parts, fmt.Sprintf("device %d", device))
	}
	if parts == nil {
		return ""
	}
	return strings.Join(parts, ", ") + ": "
}

// refusal is one in as few words as a line of a terminal has.
func (m *Model) refusal(f job.RepeatedRefusal, known []job.Process) string {
	text := named(f.RequesterName(known), f.PID) + " asked for " + humanfmt.Bytes(f.Asked)
	if f.Times > 1 {
		text += fmt.Sprintf(" %s%d", m.look.times, f.Times)
	}
	text += fmt.Sprintf(" with %s free of %s", humanfmt.Bytes(f.Free()), humanfmt.Bytes(f.Limit))
	var top []string
	for i, h := range f.Top {
		top = append(top, named(f.HolderName(i, known), h.PID)+" "+humanfmt.Bytes(h.Bytes))
	}
	if len(top) > 0 {
		text += "; held: " + strings.Join(top, ", ")
	}
	return text
}

func named(name string, pid int) string {
	if name == "" {
		return fmt.Sprintf("pid %d", pid)
	}
	return fmt.Sprintf("%s (%d)", name, pid)
}

// newsLines are the newest items that fit.
func (m *Model) newsLines(width, height int) (lines []string) {
	for _, n := range m.news() {
		style := plain
		if n.bad && m.sample.At.Sub(n.at) < recent {
			style = m.look.bad
		}
		at := n.at.In(m.zone).Format(time.TimeOnly)
		front := "  " + m.look.faint.Render(at) + "  "
		for _, part := range wrap(n.text, max(width-len(at)-4, 8)) {
			if len(lines) == height {
				return lines
			}
			lines, front = append(lines, front+style.Render(part)), strings.Repeat(" ", len(at)+4)
		}
	}
	return lines
}
