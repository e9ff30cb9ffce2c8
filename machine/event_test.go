package machine

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ration/check/expect"
)

// kindsOf renders events in short.
func kindsOf(events []Event) string {
	var out []string
	for _, e := range events {
		out = append(out, fmt.Sprintf("%s@%d", e.Kind, e.Time.UnixNano()))
	}
	return strings.Join(out, " ")
}

func TestEvents(t *testing.T) {
	now := time.Unix(0, 1000)
	at := func(jobs ...Job) *Machine { return &Machine{Jobs: jobs} }
	running := Job{Name: "train", Path: "p", Created: timeOf(10), Started: timeOf(11), State: Running, Devices: []Device{{Refused: 1}},
		Refusals: []Refusal{{Time: timeOf(20), PID: 1, Slot: 1}}, Deaths: []Death{{Time: timeOf(30), PID: 2, Slot: 2}}}
	more := running
	more.Refusals = []Refusal{{Time: timeOf(50), PID: 1, Slot: 1}, {Time: timeOf(40), PID: 1, Slot: 1}, {Time: timeOf(20), PID: 1, Slot: 1}}
	more.Devices = []Device{{Refused: 3}}
	more.Deaths = []Death{{Time: timeOf(45), PID: 3, Slot: 2}, {Time: timeOf(30), PID: 2, Slot: 2}}
	ended := more
	ended.State = Ended
	seen := ended
	seen.Ended, seen.Exit = timeOf(60), &Exit{Status: 3}
	again := Job{Name: "train", Path: "p", Created: timeOf(70), State: Starting}
	broken := Job{Name: "train", Path: "p", State: Running, Error: "cut short"}
	flood := more
	flood.Devices = []Device{{Refused: 1}, {Refused: 400}}
	killed := running
	killed.Ended, killed.State = timeOf(90), Idle
	killed.Deaths = []Death{{Time: timeOf(80), PID: 9, Slot: 3, Joined: timeOf(15)}, {Time: timeOf(30), PID: 2, Slot: 2}}
	reaped := running // by another, who noticed the same death earlier
	reaped.Deaths = []Death{{Time: timeOf(79), PID: 9, Slot: 3, Joined: timeOf(15)}, {Time: timeOf(30), PID: 2, Slot: 2}}
	late := killed // the service noticed its death after it had made the next
	older := again // by the word of its user
	older.Created, older.Started = timeOf(1), timeOf(2)
	ahead := again // by a clock that was set back
	ahead.Created = timeOf(5000)
	removed := &Machine{Removed: []Job{killed}}
	for name, c := range map[string]struct {
		before, after *Machine
		want          string
	}{
		"all that is known":                    {at(), at(running), "start@11 refusal@20 death@30"},
		"nothing":                              {at(running), at(running), ""},
		"refusals and a death":                 {at(running), at(more), "refusal@40 death@45 refusal@50"},
		"an end that its launcher saw":         {at(more), at(seen), "end@60"},
		"an end that nobody saw":               {at(more), at(ended), "end@1000"},
		"an end of long ago":                   {at(), at(ended), "start@11 refusal@20 death@30 refusal@40 death@45 refusal@50"},
		"one of long ago that was seen":        {at(), at(seen), "start@11 refusal@20 death@30 refusal@40 death@45 refusal@50 end@60"},
		"removed":                              {at(running), at(), "end@1000"},
		"removed with a death":                 {at(running), removed, "death@80 end@90"},
		"removed with one that is known":       {at(reaped), removed, "end@90"},
		"removed, and another of its name":     {at(running), &Machine{Jobs: []Job{again}, Removed: []Job{late}}, "death@69 end@69 start@70"},
		"removed before it was read":           {at(), removed, "start@11 refusal@20 death@30 death@80 end@90"},
		"removed long ago":                     {removed, removed, ""},
		"removed after its end":                {at(ended), at(), ""},
		"another of its name":                  {at(running), at(again), "end@69 start@70"},
		"one that says that it is older":       {at(running), at(older), "start@2 end@1000"},
		"one that started after now":           {at(running), at(ahead), "end@999 start@1000"},
		"cannot be read for a while":           {at(running), at(broken), ""},
		"and then it can, as another look has": {at(broken), at(running), "start@11 refusal@20 death@30"}, // known already: by their IDs
		"more refusals than are kept":          {at(running), at(flood), "refusal@40 death@45 refusal@50"},
	} {
		got := Events(c.before, c.after, now)
		expect.True(t, kindsOf(got) == c.want, name, kindsOf(got), "want", c.want)
		ids := map[EventID]bool{}
		for i := range got {
			expect.True(t, !ids[got[i].ID()] && got[i].Text != "" && got[i].Path == "p", name, got[i])
			ids[got[i].ID()] = true
		}
		expect.True(t, name != "more refusals than are kept" || got[0].Missed == 398 && got[2].Missed == 0, got)
	}
	if e := Events(at(more), at(seen), now)[0]; e.Exit.Status != 3 || e.Text != "job train has ended with exit status 3" {
		t.Errorf("got %+v", e)
	}
	// An event has one name, whoever noticed it, also after it was sent.
	for _, e := range Events(at(), at(seen), now) {
		text, _ := json.Marshal(e)
		var back Event
		err := json.Unmarshal(text, &back)
		expect.True(t, err == nil && back.ID() == e.ID(), back, err)
	}
	first, second := Events(at(more), at(ended), now)[0], Events(at(more), at(seen), now.Add(time.Hour))[0]
	expect.True(t, first.ID() == second.ID(), first.ID(), second.ID())
}

// What the driver says of a copy is not said of what it was copied from.
func TestClone(t *testing.T) {
	m := Machine{Devices: []GPU{{}}, Jobs: []Job{{Processes: []Process{{Holdings: []Holding{{Total: 1}}}}}}}
	c := m.Clone()
	c.Jobs[0].Processes[0].Holdings[0].Driver, c.Devices[0].Used = 7, 7
	c.Jobs[0].Processes[0].Name = "x"
	expect.True(t, m.Jobs[0].Processes[0].Holdings[0].Driver == 0 && m.Devices[0].Used == 0 && m.Jobs[0].Processes[0].Name == "", "got", m)
}

// A job whose processes outlived its command, and that nobody saw, has ended with the command, as far as anybody knows.
func TestEndOfOutlivedCommand(t *testing.T) {
	at := time.Unix(1e9, 0).UTC()
	job := Job{Name: "train", Path: "/jobs/train/region", State: Ended, Created: at.Add(-time.Hour), CommandEnded: at, Exit: &Exit{Status: 1}}
	end := func(before *Machine) (out []time.Time) {
		for _, e := range Events(before, &Machine{Jobs: []Job{job}}, at.Add(time.Minute)) {
			if e.Kind == JobEnded {
				out = append(out, e.Time)
			}
		}
		return out
	}
	expect.True(t, slices.Equal(end(&Machine{}), []time.Time{at}), end(&Machine{}))
	was := job
	was.State, was.CommandEnded, was.Exit = Running, time.Time{}, nil
	expect.True(t, slices.Equal(end(&Machine{Jobs: []Job{was}}), []time.Time{at.Add(time.Minute)}), end(&Machine{Jobs: []Job{was}}))
}
