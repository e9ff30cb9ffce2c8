package policy

import (
	"testing"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/region"
)

// What of a rule has no room stays as it is, on that device only. The rest of the rule counts.
func TestWithin(t *testing.T) {
	r := machineOf(140, 140, 140)
	r.seen = &seen{held: &holdings{}}
	limits := func(share uint64, memory ...uint64) region.Limits {
		l := on(memory...)
		l.Compute[0], l.ComputeMax[0] = share, 90
		return l
	}
	free, full, shares := limits(10, 20, 60, 20), limits(10, 20, 60, 10), limits(40, 100, 60, 10)
	unlimited := limits(10, 60, 60, 60)
	unlimited.Memory[0] = abi.Unlimited
	rule := limits(40, 100, 60, 10)
	others := []booked{{uid: 1, limits: on(0, 120, 0)}}
	for _, c := range []struct {
		name      string
		now, want region.Limits
		outside   uint64 // on device 0
		share     uint64 // of others, of device 0
	}{
		{name: "room for all", now: limits(10, 20, 10, 20), want: limits(40, 100, 10, 10)},
		{name: "lowered only", now: full, want: shares},
		{name: "held in no ration", now: free, outside: 100, want: limits(40, 20, 60, 10)},
		{name: "no share left", now: free, share: 70, want: limits(10, 100, 60, 10)},
		{name: "neither", now: free, outside: 100, share: 70, want: limits(10, 20, 60, 10)},
		{name: "unlimited before", now: unlimited, outside: 100, want: limits(10, 100, 60, 10)},
	} {
		b := beside{uid: 9, booked: append(others, booked{uid: 2, limits: limits(c.share)}), held: &holdings{}}
		b.held.used[0], b.held.outside = c.outside*gib, map[int][abi.Devices]uint64{0: gigabytes(c.outside)}
		b.has.Add(c.now)
		expect.Equal(t, r.within(rule, c.now, b), c.want, c.name)
	}
	r.seen = nil
	b := beside{uid: 9}
	b.has.Add(free)
	expect.Equal(t, r.within(rule, free, b), limits(10, 20, 60, 10), "it is not known what is held in no ration")
}
