package tui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"ration/internal/humanfmt"
	"ration/machine"
)

// event is a death, or the refusals of one process.
type event struct {
	time    time.Time // time of the latest
	text    string
	refusal bool
}

// highlightTime is how long a refusal is highlighted.
const highlightTime = 5 * time.Second

// maxSubject bounds the part of a job's name in an event.
const maxSubject = 32

// events returns the refusals and deaths of the chosen jobs, including ended ones, newest first.
func (m *Model) events() (out []event) {
	for _, j := range m.lastRead {
		if m.chosen(&j) {
			out = append(out, m.eventsOf(&j, len(m.lastRead) > 1)...)
		}
	}
	out = append(out, m.deniedEvents(func(d *machine.Denied) bool {
		return m.choosesUser(d.UID, d.User) && m.matches(machine.DeniedSentence(d))
	})...)
	m.sortEvents(out)
	return out
}

// deniedEvents returns the rations that the policy refused: the latest of each user, and how many of these were the same.
// has says which of these to return.
func (m *Model) deniedEvents(has func(*machine.Denied) bool) (out []event) {
	latest := map[int]event{}
	for _, e := range m.deniedGroups(has) { // oldest first
		latest[e.uid] = e.event
	}
	for _, e := range latest {
		out = append(out, e)
	}
	return out
}

// denials are rations that the policy refused to a user, one after the other, in the same words.
type denials struct {
	event
	uid int
}

// deniedGroups returns all of them, oldest first.
func (m *Model) deniedGroups(has func(*machine.Denied) bool) (out []denials) {
	type group struct {
		same   int
		latest *machine.Denied
	}
	var groups []group
	last := map[int]int{}            // by UID: index of the user's latest group
	for i := range m.sample.Denied { // oldest first
		d := &m.sample.Denied[i]
		at, known := last[d.UID]
		if !known || groups[at].latest.Text != d.Text {
			at = len(groups)
			last[d.UID], groups = at, append(groups, group{})
		}
		groups[at].same++
		groups[at].latest = d
	}
	for _, g := range groups {
		if !has(g.latest) {
			continue
		}
		text := machine.DeniedSentence(g.latest)
		if g.same > 1 {
			text += fmt.Sprintf(" %s%d", m.theme.times, g.same)
		}
		out = append(out, denials{event{g.latest.Time, text, true}, g.latest.UID})
	}
	return out
}

// sortEvents sorts the newest first. Users can write the times of their jobs, so events in the
// future come last: they would hide those of others.
func (m *Model) sortEvents(all []event) {
	after := m.sample.Time.Add(highlightTime) // tolerates a clock that was set
	slices.SortFunc(all, func(a, b event) int {
		if later := a.time.After(after); later != b.time.After(after) {
			if later {
				return 1
			}
			return -1
		}
		return cmp.Or(cmp.Compare(b.time.UnixNano(), a.time.UnixNano()), cmp.Compare(a.text, b.text))
	})
}

// eventsOf returns the events of a job, with or without its name.
func (m *Model) eventsOf(j *machine.Job, named bool) (out []event) {
	for _, a := range askers(j.Refusals) {
		out = append(out, event{a.latest.Time, m.subject(j, a.latest.Device, named) + m.refusalText(a, m.known[j.Path]), true})
	}
	for _, d := range j.Deaths {
		name := fmt.Sprint(d.PID) // a claim: the PID of a dead process cannot be confirmed
		if d.Name == "" {
			name = "pid " + name
		} else {
			name = d.Name + " (" + name + ")"
		}
		text := fmt.Sprintf("%s died holding %s, now free", name, humanfmt.Bytes(d.Total()))
		if d.Asleep {
			text = fmt.Sprintf("%s died asleep, with %s in host memory", name, humanfmt.Bytes(d.Total()))
		}
		if named {
			text = m.shortTitle(j, maxSubject) + ": " + text
		}
		out = append(out, event{d.Time, text, false})
	}
	m.sortEvents(out)
	return out
}

// asker is a process that was refused memory of one device.
type asker struct {
	latest machine.Refusal
	times  int
	same   bool // all its requests had one size
}

// askers groups refusals by process, so that a program that retries a hundred times is one line.
func askers(refusals []machine.Refusal) (out []asker) {
	for _, f := range refusals { // newest first
		i := slices.IndexFunc(out, func(a asker) bool {
			return a.latest.PID == f.PID && a.latest.Slot == f.Slot && a.latest.Device == f.Device
		})
		if i < 0 {
			out = append(out, asker{f, 1, true})
			continue
		}
		out[i].times++
		out[i].same = out[i].same && f.Asked == out[i].latest.Asked
	}
	return out
}

// subject names the job and the device of an event, if there are several.
func (m *Model) subject(j *machine.Job, device int, named bool) string {
	var parts []string
	if named {
		parts = append(parts, m.shortTitle(j, maxSubject))
	}
	if len(j.Devices) > 1 {
		parts = append(parts, fmt.Sprintf("device %d", device))
	}
	if parts == nil {
		return ""
	}
	return strings.Join(parts, ", ") + ": "
}

// refusalText is Refusal.Sentence in fewer words.
func (m *Model) refusalText(a asker, known []machine.Process) string {
	f := a.latest
	text := shortPID(f.Requester(known)) + " asked for " + humanfmt.Bytes(f.Asked)
	switch {
	case a.times > 1 && a.same:
		text += fmt.Sprintf(" %s%d", m.theme.times, a.times)
	case a.times > 1:
		text += fmt.Sprintf(", the latest of %d,", a.times)
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

// shortPID shortens the name that package machine gives a process.
func shortPID(process string) string { return strings.Replace(process, "(pid ", "(", 1) }

// linesOf formats events, each with its time.
func (m *Model) linesOf(events []event) (lines []line) {
	for _, e := range events {
		style := plain
		if e.refusal && m.sample.Time.Sub(e.time) < highlightTime {
			style = m.theme.bad
		}
		clock := e.time.In(m.zone).Format(time.TimeOnly)
		prefix := "  " + m.theme.faint.Render(clock) + "  "
		for _, part := range wrap(e.text, max(m.width-len(clock)-4, 8)) {
			lines = append(lines, line{text: prefix + style.Render(part)})
			prefix = strings.Repeat(" ", len(clock)+4)
		}
	}
	if len(lines) == 0 {
		lines = append(lines, line{text: m.theme.faint.Render("  none")})
	}
	return lines
}
