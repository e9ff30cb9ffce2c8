package policy

import (
	"errors"
	"testing"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/region"
)

// limits are those of device 0, in bytes and per cent; memory below 0 is none.
func limits(memory int64, share, most uint64) (l region.Limits) {
	l.Memory[0] = abi.Unlimited
	if memory >= 0 {
		l.Memory[0] = abi.MakeLimit(uint64(memory))
	}
	l.Compute[0], l.ComputeMax[0] = share, most
	return l
}

// What a run has and what is left of the ration are the ration, whatever the run had before.
func TestTake(t *testing.T) {
	const g = 1 << 30
	for _, c := range []struct {
		name             string
		ration, had      region.Limits
		wantRun, wantOwn region.Limits
	}{
		{"a part", limits(8*g, 50, 60), limits(5*g, 20, 25), limits(5*g, 20, 25), limits(3*g, 30, 35)},
		{"all", limits(8*g, 50, 0), limits(8*g, 50, 0), limits(8*g, 50, 0), limits(0, 0, 0)},
		{"more than there is", limits(4*g, 10, 20), limits(5*g, 20, 25), limits(4*g, 10, 19), limits(0, 0, 1)},
		{"nothing is left", limits(0, 0, 1), limits(5*g, 20, 25), limits(0, 0, 1), limits(0, 0, 1)},
		{"no limit before", limits(4*g, 0, 20), limits(-1, 0, 0), limits(4*g, 0, 19), limits(0, 0, 1)},
		{"no limit at all", limits(-1, 0, 0), limits(5*g, 0, 10), limits(5*g, 0, 10), limits(-1, 0, 0)},
	} {
		own := c.ration
		run := take(&own, c.had)
		expect.True(t, run == c.wantRun && own == c.wantOwn,
			c.name, "the run has", run.Memory[0], run.Compute[0], run.ComputeMax[0], own.Memory[0], own.Compute[0], own.ComputeMax[0], "are left")
	}
}

// A run has a part of what is left, or is refused.
func TestCheckRun(t *testing.T) {
	const g = 1 << 30
	unset := region.Limits{}
	for _, c := range []struct {
		name      string
		run, left region.Limits
		right     bool
	}{
		{"a part", limits(5*g, 20, 25), limits(8*g, 50, 60), true},
		{"all", limits(8*g, 50, 0), limits(8*g, 50, 0), true},
		{"too much", limits(8*g+abi.Unit, 0, 0), limits(8*g, 0, 0), false},
		{"no limit", limits(-1, 0, 0), limits(8*g, 0, 0), false},
		{"no limit of a ration without", limits(-1, 0, 0), limits(-1, 0, 0), true},
		{"a share too much", limits(g, 51, 0), limits(8*g, 50, 0), false},
		{"no cap where there is one", limits(g, 0, 0), limits(8*g, 0, 50), false},
		{"all of a cap", limits(g, 0, 50), limits(8*g, 0, 50), false},
		{"a cap of its own", limits(g, 0, 50), limits(8*g, 0, 0), true},
		{"a device that is not asked for", unset, limits(8*g, 0, 0), true},
	} {
		run := c.run
		err := checkRun(&run, c.left, nothingBeside, gpuName)
		expect.True(t, (err == nil) == c.right && (err == nil || errors.Is(err, ErrRun)), c.name, err)
		expect.True(t, !c.left.Memory[0].Limited() || err != nil || run.Memory[0].Limited(), c.name, "the run has no limit")
	}
}

// Limits of nothing are none of what a ration limits, and those of no ration are not made.
func TestNothing(t *testing.T) {
	got := nothing(limits(8<<30, 50, 60))
	expect.Equal(t, got, limits(0, 0, 1), got.Memory[0], got.Compute[0], got.ComputeMax[0])
	got = nothing(limits(-1, 0, 0))
	expect.Equal(t, got, limits(-1, 0, 0), got.Memory[0], got.Compute[0], got.ComputeMax[0])
}

// A rule with projects allows these; without any, what the user says is a claim.
func TestProjectOfRun(t *testing.T) {
	for _, c := range []struct {
		allowed        []string
		asked, project string
		claimed, fails bool
	}{
		{nil, "", "", false, false}, {nil, "web", "web", true, false},
		{[]string{"nlp"}, "", "nlp", false, false}, {[]string{"nlp"}, "web", "", false, true},
		{[]string{"nlp", "web"}, "", "", false, false}, {[]string{"nlp", "web"}, "web", "web", false, false},
	} {
		project, claimed, err := (&Rule{Projects: c.allowed}).project(c.asked)
		expect.True(t, project == c.project && claimed == c.claimed && (err != nil) == c.fails, c, project, claimed, err)
	}
}
