package machine

import (
	"testing"

	"ration/check/expect"
)

// The priority of a job has an effect only beside a job of the opposite priority on the same GPU, and says so if there is
// none.
func TestPriorityWithoutEffect(t *testing.T) {
	job := func(name, priority, uuid string) Job {
		return Job{Name: name, Priority: priority, State: Running, Devices: []Device{{UUID: uuid, Used: 1}}}
	}
	alone := "high priority, without effect now: no job of low priority uses a GPU with it"
	asleep := job("batch", "low", "a")
	asleep.Sleep = Asleep
	for _, c := range []struct {
		other Job
		want  string
	}{
		{job("batch", "low", "a"), "high priority"},
		{job("batch", "low", "b"), alone},
		{job("batch", "high", "a"), alone},
		{job("batch", "", "a"), alone},
		{asleep, alone},
	} {
		m := Machine{Jobs: []Job{job("serve", "high", "a"), c.other}}
		m.addPriorities(false)
		expect.Equal(t, m.Jobs[0].PrioritySentence(), c.want, c.other)
	}
	normal := job("plain", "", "a")
	expect.Equal(t, normal.PrioritySentence(), "")
	flood := func(string) (pid, locks int, err error) { return 7, 600, nil }
	expect.Equal(t, prioritiesSuspended(flood), "priorities are suspended while pid 7 holds 600 locks on /run/ration/priority")
	none := func(string) (pid, locks int, err error) { return 0, 0, nil }
	expect.Equal(t, prioritiesSuspended(none), everyPriority)
}
