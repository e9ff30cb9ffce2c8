package web

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"ration/internal/humanfmt"
	"ration/internal/termtext"
	"ration/machine"
)

// shownEvents is how many of the latest events are shown.
const shownEvents = 50

// timeline shows the latest events. Each user gets a fair share of the lines, so that a user with
// thousands of events hides no other user's.
type timeline struct {
	given  []machine.Event // the last argument of set
	events []machine.Event // latest last
}

// set sets the events, in any order.
func (t *timeline) set(events []machine.Event) {
	if len(events) == len(t.given) && (len(events) == 0 || &events[0] == &t.given[0]) {
		return // unchanged
	}
	t.given, t.events = events, slices.Clone(events)
	slices.SortStableFunc(t.events, func(a, b machine.Event) int { return a.Time.Compare(b.Time) })
}

// eventView is an event for the template.
type eventView struct {
	Kind, Word  string
	Job, Href   string // title of the job, and its link on the page if it is there
	Owner       string
	Text        string
	Clock, When string // for people, and for programs
	Times       int    // how often a request was refused in a row
}

var eventWords = map[string]string{machine.JobStarted: "started", machine.JobEnded: "ended", machine.RequestRefused: "refused", machine.ProcessDied: "died", machine.ProcessesStopped: "stopped", machine.JobIdle: "idle",
	machine.JobWaits: "waits", machine.JobAdmitted: "admitted", machine.JobGaveUp: "gave up", machine.JobSlept: "asleep", machine.JobWoke: "awake", machine.JobCannotSleep: "cannot sleep", machine.GPUFailed: "GPU failed", machine.GPUReturned: "GPU back"}

// fairly selects the newest events of each user, as many as there is space for. It takes and
// returns indices, newest first.
func (t *timeline) fairly(newest []int, space int) (out []int) {
	counts, taken, account := map[int]int{}, map[int]int{}, accounts()
	for _, at := range newest {
		counts[account(t.events[at].UID)]++
	}
	share := fairShare(counts, space)
	for _, at := range newest {
		user := account(t.events[at].UID)
		if taken[user]++; taken[user] <= share {
			out = append(out, at)
		}
	}
	return out
}

// lines returns the indices of the events that get a line, newest first, and how often each
// happened. A request that is refused repeatedly has one line.
func (t *timeline) lines() (newest []int, times map[int]int) {
	times = map[int]int{}
	var before *machine.Event
	for i := len(t.events) - 1; i >= 0; i-- {
		e := &t.events[i]
		if before != nil && e.Refusal != nil && before.Refusal != nil && e.Path == before.Path && sameRequest(e.Refusal, before.Refusal) {
			times[newest[len(newest)-1]]++
			continue
		}
		before, times[i] = e, 1
		newest = append(newest, i)
	}
	return newest, times
}

// view returns the latest events, newest first.
func (t *timeline) view(m *machine.Machine, owners bool) (out []eventView) {
	there := map[machine.JobID]bool{}
	for i := range m.Jobs {
		there[m.Jobs[i].ID()] = true
	}
	newest, times := t.lines()
	for _, at := range t.fairly(newest, shownEvents) {
		e := &t.events[at]
		v := eventView{Kind: e.Kind, Word: eventWords[e.Kind], Job: termtext.Printable(strings.TrimPrefix(cmp.Or(e.Job, e.Path), e.Owner+"/")), Text: sentence(e.Text), Times: times[at]}
		if key := e.JobID(); there[key] {
			v.Href = "#" + elementID(key)
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

// sentence makes a printable sentence of a text without its period.
func sentence(text string) string { return termtext.Printable(text) + "." }

// clock formats a time.
func clock(t time.Time) (people, programs string) {
	if t.IsZero() {
		return "", ""
	}
	return t.Local().Format(time.TimeOnly), t.UTC().Format(time.RFC3339)
}

func plural(n int, one, many string) string { return humanfmt.Plural(n, one, many) }
