package launch

import (
	"errors"
	"strings"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/job"
	"ration/machine"
)

// Which jobs sleep for a command that waits: as few as are needed, the one that has been unused longest first.
func TestToSleep(t *testing.T) {
	now := time.Now()
	unused := func(name string, long time.Duration, gibs uint64) machine.Job {
		return machine.Job{Name: name, Path: "/jobs/" + name, UID: job.User(), State: machine.Running, SleepAfter: 600_000, UnusedSince: now.Add(-long),
			Devices: []machine.Device{{UUID: "GPU-0", Limited: true, Limit: gibs * gib, Used: gib}}}
	}
	change := func(j machine.Job, f func(*machine.Job)) machine.Job { f(&j); return j }
	old, older := unused("old", time.Hour, 4), unused("older", 2*time.Hour, 4)
	busy := unused("busy", 0, 2)
	busy.UnusedSince = time.Time{}
	for _, c := range []struct {
		what  string
		wants uint64
		jobs  []machine.Job
		sleep string
		later bool
	}{
		{"the one that was used last stays awake", 4, []machine.Job{old, older}, "older", true},
		{"two are needed", 7, []machine.Job{old, older}, "older old", true},
		{"all of them are not enough", 9, []machine.Job{old, older, busy}, "", true},
		{"a larger one is enough", 4, []machine.Job{unused("small", 2*time.Hour, 1), unused("large", time.Hour, 5), busy, unused("no", 0, 2)}, "large", true},
		{"unused for less than a tenth of its time", 4, []machine.Job{unused("a", 59*time.Second, 8)}, "", true},
		{"unused for a tenth of its time", 4, []machine.Job{unused("a", time.Minute, 8)}, "a", true},
		{"in use", 9, []machine.Job{busy}, "", true},
		{"without --sleep-after", 4, []machine.Job{change(unused("a", time.Hour, 8), func(j *machine.Job) { j.SleepAfter = 0 })}, "", false},
		{"cannot sleep", 4, []machine.Job{change(unused("a", time.Hour, 8), func(j *machine.Job) { j.CannotSleep = "because" })}, "", false},
		{"falls asleep already", 4, []machine.Job{change(unused("a", time.Hour, 8), func(j *machine.Job) { j.Sleep = machine.FallingAsleep })}, "", false},
		{"of another user", 4, []machine.Job{change(unused("a", time.Hour, 8), func(j *machine.Job) { j.UID++ })}, "", false},
		{"without a limit", 10, []machine.Job{change(unused("a", time.Hour, 8), func(j *machine.Job) { j.Devices[0].Limited = false })}, "a", true},
	} {
		m := machine.Machine{Devices: []machine.GPU{{Device: 0, UUID: "GPU-0", Total: 10 * gib}}, Jobs: c.jobs}
		for _, j := range c.jobs {
			m.Devices[0].Used += j.Devices[0].Used
		}
		w := &waiter{wants: map[int]uint64{0: c.wants * gib}}
		got, later := w.toSleep(&m, now)
		var names []string
		for _, j := range got {
			names = append(names, j.Name)
		}
		expect.Equal(t, strings.Join(names, " "), c.sleep, c.what)
		expect.Equal(t, later, c.later, c.what, "looks again")
	}
}

// A job that cannot sleep is left alone, and the next one makes room instead.
func TestMakeRoomRefused(t *testing.T) {
	m := machine.Machine{Devices: []machine.GPU{{Device: 0, UUID: "GPU-0", Total: 10 * gib}}}
	for i, name := range []string{"second", "first"} {
		m.Jobs = append(m.Jobs, machine.Job{Name: name, Path: "/jobs/" + name, UID: job.User(), State: machine.Running, SleepAfter: 1000,
			UnusedSince: time.Now().Add(-time.Duration(i+1) * time.Hour), Devices: []machine.Device{{UUID: "GPU-0", Limited: true, Limit: 5 * gib}}})
	}
	var asked []string
	w := &waiter{wants: map[int]uint64{0: 5 * gib}, tell: func(string) {}, sleep: func(j *machine.Job) error {
		asked = append(asked, j.Name)
		return errors.New("it uses the GPU")
	}}
	for range 2 {
		changed, _ := w.makeRoom(&m)
		expect.True(t, changed, "it does not look again")
	}
	changed, later := w.makeRoom(&m)
	expect.True(t, !changed && later, "after both were refused", changed, later)
	expect.Equal(t, strings.Join(asked, " "), "first second")
}
