package cli

import (
	"testing"

	"ration/check/expect"
	"ration/machine"
)

// working returns a process with a slice and so many contexts with work on device 0.
func working(pid, contexts int, slice uint64, state string) machine.Process {
	c := &machine.ProcessCompute{State: state, Slice: slice, Working: contexts, Held: state != earlier}
	if state == earlier {
		c.State = ""
	}
	if state == machine.NotEnforced {
		c.Reason = "the driver refused the time slice"
	}
	return machine.Process{PID: pid, State: machine.Live, Holdings: []machine.Holding{{Device: 0, Context: 1, Compute: c}}}
}

// earlier is the state of a process that started before the job had a share or a cap.
const earlier = "earlier"

func TestWhyCompute(t *testing.T) {
	for _, tt := range []struct {
		name      string
		compute   machine.Compute
		processes []machine.Process
		want      string
	}{
		{"one of four", machine.Compute{Share: 30, Round: 20_000, Working: 1},
			[]machine.Process{working(1, 0, 2000, machine.Kept), working(2, 1, 6000, machine.Kept), working(3, 0, 6000, machine.Kept), working(4, 0, 2000, machine.Kept)},
			"share 30 %: slice 6 ms of a round of 20 ms, 1 of 4 processes has work"},
		{"contexts divide it", machine.Compute{Share: 30, Round: 20_000, Working: 3}, []machine.Process{working(1, 2, 2000, machine.Kept), working(2, 1, 2000, machine.Kept)},
			"share 30 %: slice 2 ms of a round of 20 ms, 2 of 2 processes have work in 3 contexts, which divide it"},
		{"nobody", machine.Compute{Share: 30, Round: 20_000}, nil, "share 30 % of a round of 20 ms: no process uses the device"},
		{"a cap", machine.Compute{Max: 10, Used: 3e9, Waited: 27e9}, []machine.Process{working(1, 1, 0, "")},
			"cap 10 %: it used 3 s of the device's time, and its launches waited 27 s for it, over all threads"},
		{"a cap of later", machine.Compute{Max: 10}, []machine.Process{working(1, 1, 0, ""), working(2, 1, 0, earlier)},
			"cap 10 %: it used 0 s of the device's time, and its launches waited 0 s for it, over all threads; not enforced in pid 2: it started before the job had a cap (restart it)"},
		{"not enforced", machine.Compute{Share: 5, Round: 1000}, []machine.Process{
			working(1, 0, 0, machine.NotEnforced), working(2, 0, 0, machine.NotEnforced), working(3, 0, 0, machine.NotEnforced),
			working(4, 0, 0, machine.NotEnforced), working(5, 0, 0, machine.NotEnforced)},
			"share 5 % of a round of 1 ms: no slice is in force, 0 of 5 processes have work; not enforced in pids 1, 2, 3, 4 and 1 more: the driver refused the time slice"},
	} {
		s := machine.Job{Name: "train", Devices: []machine.Device{{Compute: &tt.compute}, {Device: 1}}, Processes: tt.processes}
		got := whyCompute(s)
		expect.True(t, len(got) == 1 && got[0].Text == tt.want && got[0].Job == "train", tt.name, got, tt.want)
	}
}
