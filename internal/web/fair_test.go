package web

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ration/check/expect"
	"ration/check/webtest"
	"ration/machine"
)

func TestFairShare(t *testing.T) {
	for _, c := range []struct {
		counts []int
		want   int // so many of each at least, and at most where somebody has more
	}{{nil, 0}, {[]int{5}, 5}, {[]int{10}, 10}, {[]int{11}, 10}, {[]int{5, 5}, 5}, {[]int{1000, 1}, 9}, {[]int{1000, 4, 1}, 5}, {[]int{1000, 1000, 1000}, 3}, {slices.Repeat([]int{2}, 11), 0}} {
		counts, most := map[int]int{}, 0
		for user, n := range c.counts {
			counts[user] = n
			most = max(most, n)
		}
		got := fairShare(counts, 10)
		expect.Equal(t, min(got, most), c.want, c.counts, got)
	}
}

const eve, ada = 100000, 8

// A tenant can have any number of jobs, say that each holds more than there is, and be thousands of users:
// those of others are on the page.
func TestJobsOfFloodingUser(t *testing.T) {
	m := webtest.Machine(1, 0, 0)
	for n := range 3 * maxJobs {
		j := webtest.Job(n, 0, 1)
		j.UID, j.Path, j.Devices[0].Used = eve+n%200, fmt.Sprint("/eve/", n), 1<<60
		if n%2 == 1 {
			j.State = machine.Ended
		}
		m.Jobs = append(m.Jobs, j)
	}
	accountOf = func(uid int) int { return min(uid, eve) }
	defer func() { accountOf = func(uid int) int { return uid } }()
	own := webtest.Job(5000, 0, 1)
	own.UID, own.Name, own.Path = ada, "of-ada", "/ada/region"
	m.Jobs = append(m.Jobs, own)
	p := serve(t, m, nil)
	_, text, _ := p.ask("GET", "", nil, nil)
	expect.True(t, strings.Contains(text, "of-ada"), "a job of another user is missing")
	expect.Equal(t, strings.Count(text, `id="job-`), 2*maxJobs, "jobs are shown")
}

// Nor do events that a tenant makes, or says are of tomorrow.
func TestEventsOfFloodingUser(t *testing.T) {
	accountOf = func(uid int) int { return min(uid, eve) }
	defer func() { accountOf = func(uid int) int { return uid } }()
	now := time.Unix(1e9, 0)
	m := webtest.Machine(1, 2, 9)
	m.Jobs[0].UID, m.Jobs[0].Path, m.Jobs[0].Name = ada, "/ada/region", "of-ada"
	m.Jobs[1].UID, m.Jobs[1].Path = eve, "/eve/region"
	var line timeline
	events := machine.Events(&machine.Machine{}, m, now)
	add := func(after *machine.Machine) {
		events = append(slices.Clone(events), machine.Events(m, after, now)...)
		m = after
		line.set(events)
	}
	flood := func(rounds int) {
		for range rounds {
			after := *m
			after.Jobs = slices.Clone(m.Jobs)
			after.Jobs[1].UID++ // another delegated one
			after.Jobs[1].Deaths = nil
			for range 64 {
				now = now.Add(time.Millisecond)
				after.Jobs[1].Deaths = append(after.Jobs[1].Deaths, machine.Death{Time: now.Add(24 * time.Hour), PID: 1})
			}
			add(&after)
		}
	}
	died := func() (n int) {
		for _, v := range line.view(m, true) {
			if v.Job == "of-ada" && v.Kind == machine.ProcessDied {
				n++
			}
		}
		return n
	}
	flood(5)
	after := *m
	after.Jobs = slices.Clone(m.Jobs)
	now = now.Add(time.Millisecond)
	webtest.Kill(&after.Jobs[0], now)
	add(&after)
	if view := line.view(m, true); died() != 1 || len(view) != shownEvents || view[0].Job != "of-ada" {
		t.Errorf("the first of %d is of %s, and %d are ada's", len(view), view[0].Job, died())
	}
	flood(5)
	expect.True(t, died() == 1, died(), "of ada's are left")
}

// Nobody can make a job that has the id of another's: this is one way to make two with one sum of FNV.
func TestJobIDs(t *testing.T) {
	const zero = "\xd5\x6b\xb9\x53\x42\x87\x08\x36" // of which the sum is 0, and 0 stays 0 with a zero
	a, b := elementID(machine.JobID{Path: zero}), elementID(machine.JobID{Path: zero + "\x00"})
	expect.True(t, a != b, "both are", a)
}

// Jobs that say there are devices of which no driver knows make a bounded number.
func TestDerivedDevices(t *testing.T) {
	var m machine.Machine
	for n := range 10 * maxDerived {
		m.Jobs = append(m.Jobs, machine.Job{State: machine.Running, Devices: []machine.Device{{UUID: fmt.Sprint(n), Total: 1}}})
	}
	out, _ := withDevices(&m)
	expect.Equal(t, len(out.Devices), maxDerived, "devices")
}
