package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/region"
)

// A process that sets no time slices keeps normal priority, and the job says so.
func TestPriorityOfOldProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "region")
	var opt region.Options
	opt.Limits.Memory[0], opt.Limits.Priority = abi.MakeLimit(1<<30), abi.PriorityLow
	r, err := region.Open(path, opt)
	expect.Must(t, err == nil, err)
	defer r.Close()
	s, err := r.Claim("old")
	expect.Must(t, err == nil, err)
	none, err := readRegion(path, budgetForAll())
	expect.True(t, err == nil && none.Priority == "low" && none.NoPriority == "", "without a context it is", none.NoPriority, err)
	expect.OK(t, s.Charge(0, abi.Context, 1<<20))
	j, err := readRegion(path, budgetForAll())
	expect.OK(t, err)
	expect.Equal(t, j.NoPriority, fmt.Sprintf("pid %d was started while the job had normal priority (start it again)", os.Getpid()))
}

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
	flood := func(string) (pid int, holds string, err error) { return 7, "600 locks", nil }
	expect.Equal(t, prioritiesSuspended(flood), "priorities are suspended while pid 7 holds 600 locks on /run/ration/priority")
	unnamed := func(string) (pid int, holds string, err error) { return -1, "a lock", nil }
	expect.Equal(t, prioritiesSuspended(unnamed), "priorities are suspended while a process holds a lock on /run/ration/priority")
	none := func(string) (pid int, holds string, err error) { return 0, "", nil }
	expect.Equal(t, prioritiesSuspended(none), "")
}
