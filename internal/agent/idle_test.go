package agent

import (
	"strings"
	"testing"
	"time"

	"ration/check/expect"
	"ration/machine"
)

// A job that becomes idle is one event; the snapshot says so to clients that have the job already.
func TestIdleEvent(t *testing.T) {
	now := time.Unix(100_000, 0)
	notebook := func() *machine.Machine {
		return &machine.Machine{Jobs: []machine.Job{{Name: "notebook", Path: "/n", Owner: "ada", UID: 1000, State: machine.Running, Created: time.Unix(1, 0),
			Devices: []machine.Device{{UUID: "GPU-0", Used: 40 << 30}}}}}
	}
	before, after := notebook().Jobs, notebook().Jobs
	after[0].State, after[0].IdleSince = machine.Idle, now.Add(-6*time.Hour)
	events := idleEvents(before, after, now)
	expect.Equal(t, len(events), 1)
	expect.True(t, strings.Contains(events[0].Text, "notebook of ada holds 40") && strings.Contains(events[0].Text, "6"), events[0].Text)
	expect.Equal(t, len(idleEvents(after, after, now.Add(time.Minute))), 0)
	first := newSnapshot(machine.Machine{Jobs: before}, &snapshot{})
	expect.True(t, newSnapshot(machine.Machine{Jobs: after}, first).serials[0] != first.serials[0], "clients do not get the state")
	mine := notebook()
	addIdle(mine, &machine.Machine{Jobs: after})
	expect.True(t, mine.Jobs[0].State == machine.Idle && mine.Jobs[0].IdleSince.Equal(after[0].IdleSince), mine.Jobs[0])
}
