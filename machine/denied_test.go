package machine

import (
	"slices"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/job"
)

// A refusal by the policy stops being a finding by itself, although nothing else changes.
func TestDeniedAges(t *testing.T) {
	t.Setenv("RATION_DIR", t.TempDir())
	s := newScanner(job.ScanOptions{})
	defer s.Close()
	s.base.Denied = []Denied{{Time: time.Now().Add(time.Second/2 - deniedRecent), UID: 1000, User: "ada", Text: "no room"}}
	found := func() bool {
		r, err := s.Scan(true)
		expect.Must(t, err == nil, err)
		return slices.ContainsFunc(r.Machine.Findings, func(f Finding) bool { return f.Kind == PolicyRefused })
	}
	expect.Must(t, found())
	for end := time.Now().Add(10 * time.Second); found(); time.Sleep(10 * time.Millisecond) {
		expect.Must(t, time.Now().Before(end), "it stays")
	}
	expect.True(t, s.deniedAges.IsZero(), s.deniedAges)
}

// A request beyond the user's own ration is no finding, and does not count among the refusals for want of room.
func TestDeniedOwnIsNoFinding(t *testing.T) {
	now := time.Now()
	at := func(count uint64, own bool, text string) Denied {
		return Denied{Time: now, UID: 1000, User: "ada", Count: count, Own: own, Text: text}
	}
	got := recentlyDenied([]Denied{at(1, true, "too much"), at(2, false, "no room (try again later)"), at(3, true, "too much")}, now)
	expect.Must(t, len(got) == 1, got)
	expect.Equal(t, got[0].Count, 1)
	text, remedy := got[0].sentence()
	expect.Equal(t, text, "the policy refused ada a ration: no room")
	expect.Equal(t, remedy, "try again later")
	expect.Equal(t, len(recentlyDenied([]Denied{at(1, true, "too much")}, now)), 0)
}

// What the user was told is root's to read as well: in other words.
func TestDeniedForRoot(t *testing.T) {
	d := Denied{User: "ada", Own: true, Text: "no ration for this run: your other programs hold 2 GiB, and your ration has 1 GiB (end some)"}
	for folder, want := range map[string]string{"": "ada's", t.TempDir(): "your"} { // root with one folder of jobs is as others
		t.Setenv(job.EnvFolder, folder)
		if folder == "" && !job.AllUsers() {
			continue // not root
		}
		text, remedy := d.sentence()
		expect.Equal(t, text, "the policy refused ada a ration: no ration for this run: "+want+" other programs hold 2 GiB, and "+want+" ration has 1 GiB")
		expect.Equal(t, remedy, "end some")
	}
}
