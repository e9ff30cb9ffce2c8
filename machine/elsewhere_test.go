package machine

import (
	"slices"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/gpu"
	"ration/internal/job"
)

// A region that was found only by its lock, and that names no device of this machine, counts for none: it is of a benchmark,
// or of a stand-in driver. What the driver says that its processes hold is not hidden by that.
func TestElsewhere(t *testing.T) {
	bench := func() Job {
		return Job{Path: "/dev/shm/ration-1/region", byLock: true, UID: 1000, State: Running, Died: 3, Devices: []Device{{Limited: true, Limit: 1 << 40, Used: 10 * gib}},
			Processes: []Process{{Verified: true, PID: 77, HostPID: 77, Local: ProcessID{PID: 77, Start: 1}, Holdings: []Holding{{Total: 10 * gib}}}}}
	}
	for name, c := range map[string]struct {
		change    func(m *Machine, j *Job, s *stand)
		elsewhere bool
	}{
		"without UUIDs":          {func(*Machine, *Job, *stand) {}, true},
		"a stand-in's UUID":      {func(_ *Machine, j *Job, _ *stand) { j.Devices[0].UUID = "GPU-fake" }, true},
		"a UUID of this machine": {func(_ *Machine, j *Job, _ *stand) { j.Devices[0].UUID = "GPU-b" }, false},
		"one of two":             {func(_ *Machine, j *Job, _ *stand) { j.Devices = append(j.Devices, Device{UUID: "GPU-a"}) }, false},
		"the driver lists it":    {func(_ *Machine, _ *Job, s *stand) { s.processes = []gpu.Process{{Device: 1, PID: 77, Used: gib}} }, false},
		"and it has another UUID": {func(_ *Machine, j *Job, s *stand) {
			j.Devices[0].UUID, s.processes = "GPU-fake", []gpu.Process{{Device: 1, PID: 77, Used: gib}}
		}, false},
		"and no limit": {func(_ *Machine, j *Job, s *stand) {
			j.Devices, s.processes = nil, []gpu.Process{{Device: 1, PID: 77, Used: gib}}
		}, false},
		"the driver lists another":    {func(_ *Machine, _ *Job, s *stand) { s.processes = []gpu.Process{{Device: 1, PID: 78, Used: gib}} }, true},
		"the driver does not say":     {func(_ *Machine, _ *Job, s *stand) { s.silent = gpu.ErrNoDriver }, false},
		"no driver":                   {func(_ *Machine, _ *Job, s *stand) { s.devices = nil }, false},
		"a GPU without a UUID":        {func(_ *Machine, _ *Job, s *stand) { s.devices[1].UUID, s.lost = "", map[int]error{1: gpu.ErrNoDriver} }, false},
		"an instance of a GPU":        {func(_ *Machine, j *Job, s *stand) { j.Devices[0].UUID, s.devices[0].MIG = "MIG-1", true }, false},
		"an instance on another node": {func(_ *Machine, j *Job, _ *stand) { j.Devices[0].UUID = "MIG-1" }, true},
		"in a folder of jobs":         {func(_ *Machine, j *Job, _ *stand) { j.Name = "train" }, false},
		"named by its user":           {func(_ *Machine, j *Job, _ *stand) { j.byLock = false }, false},
		"of a policy":                 {func(_ *Machine, j *Job, _ *stand) { j.Path = job.OfUserPath(1000) }, false},
		"unreadable":                  {func(_ *Machine, j *Job, _ *stand) { j.Error = "damaged" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			m, s := Machine{}, twoDevices()
			j := bench()
			c.change(&m, &j, &s)
			m.Jobs = []Job{j, {Name: "train", State: Running, Devices: []Device{{UUID: "GPU-a", Limited: true, Limit: gib}}}}
			m.addDriver(answerOf(s), lockers{})
			expect.True(t, (len(m.Elsewhere) == 1) == c.elsewhere && len(m.Jobs)+len(m.Elsewhere) == 2 && m.Jobs[len(m.Jobs)-1].Name == "train", m.Jobs, m.Elsewhere)
			if c.elsewhere {
				expect.True(t, m.Elsewhere[0].Elsewhere && m.Devices[0].Rations == gib && m.Devices[0].Jobs == 1, m.Elsewhere[0], m.Devices[0])
				expect.True(t, !slices.ContainsFunc(findingsOf(&m), func(f Finding) bool { return f.Kind != OutsideJobs }), findingsOf(&m))
			}
			outside := slices.ContainsFunc(m.Outside, func(o Outside) bool { return o.PID == 77 })
			expect.True(t, !outside, m.Outside)
		})
	}
}

// A job on no device of this machine has no events until it is on one.
func TestEventsElsewhere(t *testing.T) {
	now := time.Unix(1000, 0).UTC()
	j := Job{Path: "/dev/shm/ration-1/region", Created: timeOf(1e9), State: Running, Deaths: []Death{{Slot: 1, PID: 2, Time: timeOf(2e9)}}}
	train := Job{Name: "train", Path: "/train/region", Created: timeOf(3e9), State: Running}
	kinds := func(before, after Machine) (out []string) {
		for _, e := range withoutElsewhere(Events(&Machine{Jobs: slices.Concat(before.Jobs, before.Elsewhere)}, &Machine{Jobs: slices.Concat(after.Jobs, after.Elsewhere)}, now), &before, &after, now) {
			out = append(out, e.Kind+" "+e.Path)
		}
		return out
	}
	none, there, here := Machine{}, Machine{Elsewhere: []Job{j}}, Machine{Jobs: []Job{j}}
	expect.True(t, len(kinds(none, there)) == 0 && len(kinds(there, none)) == 0, kinds(none, there), kinds(there, none))
	all := []string{JobStarted + " " + j.Path, ProcessDied + " " + j.Path}
	expect.True(t, slices.Equal(kinds(there, here), all) && slices.Equal(kinds(none, here), all), kinds(there, here))
	expect.True(t, slices.Equal(kinds(here, none), []string{JobEnded + " " + j.Path}), kinds(here, none))
	expect.True(t, slices.Equal(kinds(none, Machine{Jobs: []Job{train}, Elsewhere: []Job{j}}), []string{JobStarted + " " + train.Path}))
	// Its last events here are not lost by that.
	dead := j
	dead.Deaths = append(slices.Clone(j.Deaths), Death{Slot: 2, PID: 3, Time: timeOf(4e9)})
	expect.True(t, slices.Equal(kinds(here, Machine{Elsewhere: []Job{dead}}), []string{ProcessDied + " " + j.Path, JobEnded + " " + j.Path}), kinds(here, Machine{Elsewhere: []Job{dead}}))
	expect.True(t, withoutElsewhere(nil, nil, &none, now) == nil)
}
