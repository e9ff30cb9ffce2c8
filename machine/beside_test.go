package machine

import (
	"testing"

	"ration/check/expect"
	"ration/internal/job"
)

// rule puts a policy in force that exempts one user. UIDs from 100000 on are subordinate ones of that user.
func rule(t *testing.T, inForce bool) (asked *int) {
	t.Helper()
	asked = new(int)
	force, out, account := policyInForce, exempt, accountOf
	t.Cleanup(func() { policyInForce, exempt, accountOf = force, out, account })
	policyInForce = func() bool { *asked++; return inForce }
	exempt = func(uid int) bool { return uid == 1002 }
	accountOf = func(uid int) int {
		if uid >= 100000 {
			return 1002
		}
		return uid
	}
	return asked
}

// The limit of a job that a rationed user has made counts for no other job; those of all others do.
func TestBesidePolicy(t *testing.T) {
	const own = "/run/user/1001/ration/huge/region"
	for name, c := range map[string]struct {
		inForce bool
		uid     int
		path    string
		beside  bool
	}{
		"of a rationed user":            {true, 1001, own, true},
		"without a policy":              {false, 1001, own, false},
		"of an exempt user":             {true, 1002, own, false},
		"in an exempt user's container": {true, 100007, own, false},
		"of root":                       {true, 0, own, false},
		"of nobody knows whom":          {true, -1, own, false},
		"the ration":                    {true, 1001, job.OfUserPath(1001), false},
		"a run":                         {true, 1001, job.RunPath(1001, "train"), false},
		"root's for the user":           {true, 1001, job.RootFolder + "/shell/region", false},
		"in a folder inside root's":     {true, 1001, job.RootFolder + "/user-1001/x/region", true},
	} {
		rule(t, c.inForce)
		devices := []Device{{UUID: "GPU-a", Limited: true, Limit: 130 * gib}, {UUID: "GPU-b", Used: gib}}
		m := Machine{Devices: []GPU{{UUID: "GPU-a", Total: 10 * gib}, {Device: 1, UUID: "GPU-b", Total: 10 * gib}}, Jobs: []Job{{UID: c.uid, Path: c.path, Devices: devices}}}
		expect.Equal(t, BesidePolicy()(&m.Jobs[0]), c.beside, name)
		m.AddRations()
		a, b := m.Devices[0], m.Devices[1]
		expect.True(t, (a.Rations == 0) == c.beside && (a.Jobs == 0) == c.beside && (b.Unlimited == 0) == c.beside, name, a, b)
		overbooked := 0
		for _, f := range findingsOf(&m) {
			if f.Kind == Overbooked {
				overbooked++
			}
		}
		expect.Equal(t, overbooked == 0, c.beside, name, "is a finding")
	}
	// A user with many jobs costs as much as one with one.
	asked := rule(t, true)
	m := Machine{Jobs: make([]Job, 100)}
	for i := range m.Jobs {
		m.Jobs[i] = Job{UID: 1001 + i%2, Path: own}
	}
	m.AddRations()
	expect.Equal(t, *asked, 2, "questions")
}
