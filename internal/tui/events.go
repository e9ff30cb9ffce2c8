package tui

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"ration/internal/humanfmt"
	"ration/machine"
)

// event is a refusal, or a death that a read has found.
type event struct {
	time    time.Time
	text    string
	refusal bool
}

// highlightTime is how long a refusal is highlighted.
const highlightTime = 5 * time.Second

// events returns refusals and deaths, the newest first.
func (m *Model) events() (out []event) {
	for _, s := range m.lastRead {
		for _, f := range machine.GroupRefusals(s.Refusals) {
			out = append(out, event{time.Unix(0, f.Time), m.subject(&s, f.Device) + m.refusalText(f, m.known[s.Path]), true})
		}
	}
	for _, s := range m.lastRead {
		for _, d := range s.Deaths {
			text := fmt.Sprintf("%s died holding %s, now free", nameAndPID(d.Name, d.PID, false), humanfmt.Bytes(d.Total()))
			if len(m.lastRead) > 1 {
				text = s.Title() + ": " + text
			}
			out = append(out, event{time.Unix(0, d.Time), text, false})
		}
	}
	for _, d := range m.deaths {
		if m.recorded(d) {
			continue
		}
		held := uint64(0)
		for _, h := range d.process.Holdings {
			held += h.Total
		}
		text := fmt.Sprintf("%s died holding %s, now free", nameAndPID(d.process.Name, d.process.PID, false), humanfmt.Bytes(held))
		if len(m.lastRead) > 1 {
			text = d.job + ": " + text
		}
		out = append(out, event{d.time, text, false})
	}
	slices.SortFunc(out, func(a, b event) int {
		return cmp.Or(cmp.Compare(b.time.UnixNano(), a.time.UnixNano()), cmp.Compare(a.text, b.text))
	})
	return out
}

// recorded says whether a death that a read has found is one that its region keeps.
func (m *Model) recorded(d death) bool {
	for _, s := range m.lastRead {
		if s.Title() == d.job && slices.ContainsFunc(s.Deaths, func(e machine.Death) bool {
			return e.Slot == d.process.Slot && e.PID == d.process.PID && e.Joined == d.process.Joined
		}) {
			return true
		}
	}
	return false
}

// subject names the job and the device of an event, where there are several.
func (m *Model) subject(s *machine.Job, device int) string {
	var parts []string
	if len(m.lastRead) > 1 {
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

// refusalText is Refusal.Sentence in fewer words.
func (m *Model) refusalText(f machine.RepeatedRefusal, known []machine.Process) string {
	text := shortPID(f.Requester(known)) + " asked for " + humanfmt.Bytes(f.Asked)
	if f.Times > 1 {
		text += fmt.Sprintf(" %s%d", m.theme.times, f.Times)
	}
	text += fmt.Sprintf(" with %s free of %s", humanfmt.Bytes(f.Free()), humanfmt.Bytes(f.Limit))
	var top []string
	for i, h := range f.Top {
		top = append(top, shortPID(f.Holder(i, known))+" "+humanfmt.Bytes(h.Bytes))
	}
	if len(top) > 0 {
		text += "; held: " + strings.Join(top, ", ")
	}
	return text
}

func nameAndPID(name string, pid int, verified bool) string {
	text := humanfmt.Claim(strconv.Itoa(pid), verified)
	if name == "" {
		return "pid " + text
	}
	return name + " (" + text + ")"
}

// shortPID shortens what package machine calls a process.
func shortPID(process string) string { return strings.Replace(process, "(pid ", "(", 1) }

// eventLines returns the newest events that fit.
func (m *Model) eventLines(width, height int) (lines []string) {
	for _, e := range m.events() {
		style := plain
		if e.refusal && m.sample.Time.Sub(e.time) < highlightTime {
			style = m.theme.bad
		}
		clock := e.time.In(m.zone).Format(time.TimeOnly)
		prefix := "  " + m.theme.faint.Render(clock) + "  "
		for _, part := range wrap(e.text, max(width-len(clock)-4, 8)) {
			if len(lines) == height {
				return lines
			}
			lines, prefix = append(lines, prefix+style.Render(part)), strings.Repeat(" ", len(clock)+4)
		}
	}
	return lines
}
