package web

import (
	"cmp"
	"slices"
	"time"

	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/termtext"
	"ration/machine"
)

// shownEvents is how many of the latest events are shown.
const shownEvents = 50

// timeline is the latest of what has happened, as it follows from two pictures.
type timeline struct {
	last   machine.Machine
	known  map[machine.EventID]bool
	events []machine.Event // the latest last
}

func newTimeline() *timeline { return &timeline{known: map[machine.EventID]bool{}} }

// add adds what has happened since the last picture.
func (t *timeline) add(m *machine.Machine, now time.Time) {
	for _, e := range machine.Events(&t.last, m, now) {
		if id := e.ID(); !t.known[id] {
			t.known[id] = true
			t.events = append(t.events, e)
		}
	}
	slices.SortStableFunc(t.events, func(a, b machine.Event) int { return cmp.Compare(a.Time, b.Time) })
	t.last = *m
	if len(t.known) <= 2*maxKnown {
		return
	}
	// What is forgotten here is no news to Events either, unless its job comes again.
	t.events = slices.Clone(t.events[max(0, len(t.events)-maxKnown):])
	clear(t.known)
	for i := range t.events {
		t.known[t.events[i].ID()] = true
	}
}

// maxKnown bounds how many events are kept, and compared with.
const maxKnown = 4096

// eventView is an event, as it is shown.
type eventView struct {
	Kind, Word  string
	Job, Href   string // its title, and where it is on the page, if it is there
	Owner       string
	Text        string
	Clock, When string // for people, and for programs
	Times       int    // of a request that was refused again and again
}

var eventWords = map[string]string{machine.JobStarted: "started", machine.JobEnded: "ended", machine.RequestRefused: "refused", machine.ProcessDied: "died"}

// view returns the latest, the newest first. A program that is refused again and again is one line.
func (t *timeline) view(m *machine.Machine, owners bool) (out []eventView) {
	there := map[jobKey]bool{}
	for i := range m.Jobs {
		there[keyOf(&m.Jobs[i])] = true
	}
	var before *machine.Event
	for i := len(t.events) - 1; i >= 0 && len(out) < shownEvents; i-- {
		e := &t.events[i]
		if before != nil && e.Refusal != nil && before.Refusal != nil && e.Path == before.Path && sameRequest(e.Refusal, before.Refusal) {
			out[len(out)-1].Times++
			continue
		}
		before = e
		v := eventView{Kind: e.Kind, Word: eventWords[e.Kind], Job: termtext.Printable(job.Job{Name: e.Job, Path: e.Path}.Title()), Text: sentence(e.Text), Times: 1}
		if key := (jobKey{e.Path, e.Created}); there[key] {
			v.Href = "#" + key.id()
		}
		if owners {
			v.Owner = e.Owner
		}
		v.Clock, v.When = clock(e.Time)
		out = append(out, v)
	}
	return out
}

func sameRequest(a, b *machine.Refusal) bool {
	return a.PID == b.PID && a.Slot == b.Slot && a.Device == b.Device && a.Asked == b.Asked
}

// sentence makes a text of a job's one line with its period.
func sentence(text string) string { return termtext.Printable(text) + "." }

// clock renders a time that is kept as Unix nanoseconds.
func clock(ns int64) (people, programs string) {
	if ns == 0 {
		return "", ""
	}
	t := time.Unix(0, ns)
	return t.Format(time.TimeOnly), t.UTC().Format(time.RFC3339)
}

func plural(n int, one, many string) string { return humanfmt.Plural(n, one, many) }
