package machine

import (
	"slices"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/job"
)

// A command that waits for room is not a job yet: it is listed, and its way through the queue makes events.
func TestWaiting(t *testing.T) {
	r, dir := scannerAt(t)
	scanned := func() (*Machine, []Event) {
		forgetRest(r)
		out, err := r.Scan(true)
		expect.OK(t, err)
		return out.Machine, slices.DeleteFunc(out.Events, func(e Event) bool { return e.Waits == nil })
	}
	scanned()
	enqueue := func(name string) *job.Ticket {
		ticket, err := job.Enqueue(job.Waiting{Job: name, Wants: map[int]uint64{0: 20 << 30}})
		expect.OK(t, err)
		return ticket
	}
	first, second := enqueue("first"), enqueue("second")
	m, events := scanned()
	expect.Must(t, len(m.Waiting) == 2 && len(events) == 2, m.Waiting, events)
	w := m.Waiting[1]
	expect.True(t, w.Place == 2 && w.Job == "second" && w.Path == dir+"/second/region" && w.UID == job.User() && w.PID > 0, w)
	expect.Equal(t, w.WantsText(), "20 GiB on GPU 0")
	expect.True(t, events[0].Kind == JobWaits && events[0].Job == "first", events[0])

	time.Sleep(2 * time.Millisecond)
	member(t, "first")
	first.Leave()
	m, events = scanned()
	expect.Must(t, len(m.Waiting) == 1 && len(events) == 1, m.Waiting, events)
	expect.True(t, events[0].Kind == JobAdmitted && events[0].Job == "first" && m.Waiting[0].Place == 1, events, m.Waiting)

	second.Leave()
	m, events = scanned()
	expect.True(t, len(m.Waiting) == 0 && len(events) == 1 && events[0].Kind == JobGaveUp && events[0].Job == "second", m.Waiting, events)
	_, events = scanned()
	expect.Equal(t, len(events), 0, "events", "again")

	third := enqueue("third")
	defer third.Leave()
	once, err := Read()
	expect.True(t, err == nil && len(once.Waiting) == 1 && once.Waiting[0].Job == "third", err, once.Waiting)
}
