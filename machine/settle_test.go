package machine

import (
	"slices"
	"testing"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/job"
)

// While memory is moved from a user's job to a run, the two are read at different instants. Together they must never show
// more than the ration, or the device seems to be overbooked.
func TestRationsOfOneInstant(t *testing.T) {
	const gib = 1 << 30
	users, run := job.OfUserPath(4001), job.RunPath(4001, "exp")
	device := func(limit uint64) []Device {
		return []Device{{Device: 0, Limited: true, Limit: limit, Total: 8 * gib}}
	}
	reads := 0
	defer func(real func(string) memoryLimits) { readMemoryLimits = real }(readMemoryLimits)
	readMemoryLimits = func(path string) (out memoryLimits) {
		reads++
		moved := reads > 1 // right after the first read the policy gives the run its part
		out.known = true
		switch {
		case path == users && !moved:
			out.on[0] = abi.MakeLimit(8 * gib)
		default:
			out.on[0] = abi.MakeLimit(4 * gib)
		}
		return out
	}
	m := Machine{Devices: []GPU{{Total: 8 * gib}}, Jobs: []Job{{Path: users, UID: 4001, State: Running, Devices: device(8 * gib)}, {Path: run, UID: 4001, State: Running, Devices: device(4 * gib)}}}
	earlier := m.Jobs[0].Devices
	m.settleRations()
	m.AddRations()
	expect.Equal(t, m.Devices[0].Rations, uint64(8*gib))
	expect.True(t, !slices.ContainsFunc(findingsOf(&m), func(f Finding) bool { return f.Kind == Overbooked }), "overbooked")
	expect.Equal(t, earlier[0].Limit, uint64(8*gib), "an earlier result was modified")
}

// A job that has been removed has nothing any more. A job whose limits cannot be read keeps those that were read before.
func TestRationsThatAreUnknown(t *testing.T) {
	j := Job{Devices: []Device{{Limited: true, Limit: 5}}}
	j.setLimits(memoryLimits{on: [abi.Devices]abi.Limit{abi.MakeLimit(0)}})
	expect.Equal(t, j.Devices[0].Limit, uint64(5))
	j.setLimits(readMemoryLimits(job.RunPath(4001, "there-is-none")))
	expect.Equal(t, j.Devices[0].Limit, uint64(0))
}
