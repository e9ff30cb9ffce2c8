package machine

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/job"
	"ration/internal/region"
)

// A look at what was hinted at sees that and nothing else, but for what it has to see: a job that is
// new, and one that was put off. A look at all sees the rest.
func TestReadHinted(t *testing.T) {
	r, dir := scannerAt(t)
	_, one := member(t, "one")
	_, two := member(t, "two")
	hinted := func() Machine {
		t.Helper()
		m, _, err := r.scan(false)
		expect.OK(t, err)
		return m
	}
	check := func(what string, m Machine, want ...uint64) {
		t.Helper()
		var got []uint64
		for i := range m.Jobs {
			got = append(got, m.Jobs[i].Devices[0].Used)
		}
		expect.True(t, slices.Equal(got, want), what, got, "is used")
	}
	charge := func() {
		t.Helper()
		for _, s := range []*region.Slot{one, two} {
			expect.OK(t, s.Charge(0, abi.Data, 1<<20))
		}
	}
	due := func(at time.Time) {
		for _, w := range r.users[ownUser].state.jobs {
			w.due = at
		}
	}
	charge()
	check("the first look is at all", hinted(), 1<<20, 1<<20)
	due(time.Time{})
	charge()
	check("without a hint", hinted(), 1<<20, 1<<20)
	r.Hint(filepath.Join(dir, "two"))
	check("with one", hinted(), 1<<20, 2<<20)
	due(time.Time{})
	m, _ := mustScan(t, r)
	check("all", m, 2<<20, 2<<20)
	anHour := time.Now().Add(time.Hour)
	due(anHour)
	charge()
	r.Hint(filepath.Join(dir, "one"))
	check("not due", hinted(), 2<<20, 2<<20)
	expect.True(t, r.due.Equal(anHour), "put off until", r.due)
	due(time.Time{})
	r.setDue()
	check("due, and without another hint", hinted(), 3<<20, 2<<20)
	due(time.Now().Add(time.Hour))
	m, _ = mustScan(t, r)
	check("all, and not due", m, 3<<20, 2<<20)
	due(time.Time{})
	r.setDue()
	check("due, and nobody has hinted at it", hinted(), 3<<20, 3<<20)
	_, three := member(t, "three")
	expect.OK(t, three.Charge(0, abi.Data, 7<<20))
	r.Hint(dir)
	check("a new one", hinted(), 3<<20, 7<<20, 3<<20)
}

// A job that has changed, was not due, and is again as it was when it was read, waits for nothing.
func TestChangedAndBack(t *testing.T) {
	r, dir := scannerAt(t)
	member(t, "one")
	mustScan(t, r)
	w := r.users[ownUser].state.jobs[filepath.Join(dir, "one", job.RegionName)]
	w.due = time.Now().Add(time.Hour)
	w.sum++
	r.Hint(w.folder)
	forgetRest(r)
	mustScan(t, r)
	expect.Must(t, !r.due.IsZero() && w.wants(time.Now()), "put off until", r.due)
	w.sum--
	forgetRest(r)
	mustScan(t, r)
	expect.True(t, r.due.IsZero() && !w.wants(time.Now()), "put off until", r.due)
}

// A job may be read at once a few times after a quiet moment. One that changes all the time has its
// part of a processor's time, and no more.
func TestDueAfter(t *testing.T) {
	const cost = time.Millisecond
	begin := time.Unix(1e9, 0)
	due, now, atOnce := time.Time{}, begin, 0
	for due = dueAfter(due, now, cost); !now.Before(due); due = dueAfter(due, now, cost) {
		atOnce++
	}
	want := int(readAhead / (readShare * cost))
	expect.True(t, atOnce == want, atOnce, "at once, not", want)
	for range 1000 {
		now = due
		due = dueAfter(due, now, cost)
	}
	took := now.Sub(begin)
	expect.True(t, took >= 1000*readShare*cost, "1000 reads of", cost, "within", took)
}
