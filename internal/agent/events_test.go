package agent

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"ration/check/expect"
	"ration/machine"
)

// A user who makes any number of events hides none of another's, from one who follows either.
func TestEventRingOfFloodingUser(t *testing.T) {
	const eve, ada = 7, 8
	r := newEventRing()
	event := func(uid, i int) machine.Event {
		return machine.Event{Kind: machine.ProcessDied, Path: fmt.Sprint(uid), UID: uid, Death: &machine.Death{Time: time.Unix(0, int64(i))}}
	}
	const own = 100
	for i := range own {
		r.add([]machine.Event{event(ada, i)})
	}
	_, next := r.since(0)
	var flood []machine.Event
	for i := range 3 * maxEvents {
		flood = append(flood, event(eve, i))
	}
	r.add(flood[:2*maxEvents])
	r.add([]machine.Event{event(ada, own)})
	r.add(flood[2*maxEvents:])
	count := func(events []machine.Event) (n int) {
		for i := range events {
			if events[i].UID == ada {
				expect.True(t, events[i].Death.Time.UnixNano() == int64(n) || events[i].Death.Time.UnixNano() == own,
					"number", n, events[i].Death)
				n++
			}
		}
		return n
	}
	all, _ := r.since(0)
	expect.True(t, len(all) == maxEvents && count(all) == own+1 && len(r.known) == maxEvents && all[maxEvents-1].Death.Time.UnixNano() == 3*maxEvents-1,
		len(all), "events", count(all), "of the quiet user's", len(r.known), "known")
	later, _ := r.since(next)
	expect.Equal(t, len(later), maxEvents-own, "a follower gets")
	expect.Equal(t, r.byUser[eve]+r.byUser[ada], maxEvents, r.byUser)
}

// What jobs of one user write to the log is bounded, and it is said what is left out; the agent's own
// user and other users have as much as there is.
func TestEventLog(t *testing.T) {
	const eve, ada, root, lent = 7, 8, 0, 1000
	defer func(was func(int) int) { accountOf = was }(accountOf)
	accountOf = func(uid int) int {
		if uid >= lent {
			return eve
		}
		return uid
	}
	var out bytes.Buffer
	l := newEventLog(slog.New(slog.NewTextHandler(&out, nil)), root)
	now := time.Unix(1e9, 0)
	count := func(text string) int { return strings.Count(out.String(), text) }
	for i := range 10 * maxLines {
		for _, e := range []machine.Event{{Kind: machine.ProcessDied, UID: eve + i%2*lent, Owner: "eve", Text: "of eve"}, {Kind: machine.JobStarted, UID: root, Text: "of root"},
			{Kind: machine.RequestRefused, UID: ada, Text: "refused"}} {
			l.begin(now.Add(time.Duration(i)))
			l.write(&e, now.Add(time.Duration(i)))
		}
	}
	l.write(&machine.Event{Kind: machine.JobEnded, UID: ada, Owner: "ada", Text: "of ada"}, now)
	expect.True(t, count("of eve") == maxLines && count("of root") == 10*maxLines && count("of ada") == 1 && count("refused") == 0 && count("level=WARN") == count("of eve"),
		count("of eve"), "of eve", count("of root"), "of root", count("of ada"), "of ada")
	l.begin(now.Add(logSpan))
	expect.True(t, count(fmt.Sprintf("%d events of jobs of eve were not written", 9*maxLines)) == 1 && count("level=WARN") == maxLines+1,
		out.String()[strings.LastIndex(out.String(), "level="):])
	for range maxLines + 1 {
		l.write(&machine.Event{Kind: machine.ProcessDied, UID: eve, Owner: "eve"}, now)
	}
	if l.end(); count("1 events of jobs of eve were not written") != 1 {
		t.Error("at its end it does not say what it left out")
	}
}

// An agent says what it left out of its log after a while, also if nothing has happened, and when it ends.
func TestEventLogEnd(t *testing.T) {
	testFolder(t)
	var out bytes.Buffer
	a, err := New(Options{Log: slog.New(slog.NewTextHandler(&out, nil))})
	expect.OK(t, err)
	leaveOut := func(account int, owner string, n int, at time.Time) {
		for range maxLines + n {
			a.log.lines.Allow(account, owner, at)
		}
	}
	leaveOut(8, "ada", 2, time.Now().Add(-logSpan))
	if a.record(nil); !strings.Contains(out.String(), "2 events of jobs of ada were not written") {
		t.Errorf("got %s", out.String())
	}
	leaveOut(7, "eve", 3, time.Now())
	if a.close(); !strings.Contains(out.String(), "3 events of jobs of eve were not written") {
		t.Errorf("got %s", out.String())
	}
}
