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
	found := func() bool {
		r, err := s.Scan(true)
		expect.Must(t, err == nil, err)
		return slices.ContainsFunc(r.Machine.Findings, func(f Finding) bool { return f.Kind == PolicyRefused })
	}
	for left := time.Second / 2; ; left *= 2 { // until the first scan, which may take long on a busy machine
		s.base.Denied = []Denied{{Time: time.Now().Add(left - deniedRecent), UID: 1000, User: "ada", Text: "no room"}}
		if found() {
			break
		}
		expect.Must(t, left < time.Minute, "it is no finding")
	}
	for end := time.Now().Add(2 * time.Minute); found(); time.Sleep(10 * time.Millisecond) {
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
	got := (&Machine{Denied: []Denied{at(4, true, "too much"), at(5, false, "no room (try again later)"), at(6, true, "too much")}}).recentlyDenied(now)
	expect.Must(t, len(got) == 1, got)
	expect.Equal(t, got[0].Count, 1)
	text, remedy := got[0].sentence()
	expect.Equal(t, text, "the policy refused ada a ration: no room")
	expect.Equal(t, remedy, "try again later")
	expect.Equal(t, len((&Machine{Denied: []Denied{at(1, true, "too much")}}).recentlyDenied(now)), 0)
}

// An entry that stands for several has the time of the first and the words of the latest, and says so.
func TestDeniedLatestOfMany(t *testing.T) {
	got, _ := (&Denied{User: "ada", Text: "no room (try again later)", Earlier: 5}).sentence()
	expect.Equal(t, got, "the policy refused ada a ration: no room; the latest of 6 since then")
	f := deniedFinding(&Denied{User: "ada", Text: "no room (try again later)", Earlier: 2, Count: 8})
	expect.Equal(t, f.Text, "the policy refused ada a ration: no room; the latest of 8 in ten minutes")
}

// A smaller ration helps no user whose rule is not known.
func TestDeniedRemedy(t *testing.T) {
	expect.Equal(t, (&Denied{}).Remedy(), "give users smaller rations, or allow overbook, in the policy's file")
	expect.Equal(t, (&Denied{Unknown: true}).Remedy(), "mend the policy's file, or the groups of this machine, and run ration policy apply")
}

// It is said of the user in all its forms.
func TestDeniedOfUser(t *testing.T) {
	t.Setenv(job.EnvFolder, "")
	if !job.AllUsers() {
		t.Skip("only root reads of other users")
	}
	for text, want := range map[string]string{
		"your ration cannot be moved: a program of yours uses it": "ada's ration cannot be moved: a program of ada's uses it",
		"project bio is not one of yours (use --label)":           "project bio is not one of ada's",
		"no room: 2 others wait before you (ration queue)":        "no room: 2 others wait before ada",
	} {
		got, _ := (&Denied{User: "ada", Text: text}).sentence()
		expect.Equal(t, got, "the policy refused ada a ration: "+want)
	}
}

// What the user was told is root's to read as well: in other words.
func TestDeniedForRoot(t *testing.T) {
	d := Denied{User: "ada", Own: true, What: "a run", Text: "your other programs hold 2 GiB, and your ration has 1 GiB (end some)"}
	for folder, want := range map[string]string{"": "ada's", t.TempDir(): "your"} { // root with one folder of jobs is as others
		t.Setenv(job.EnvFolder, folder)
		if folder == "" && !job.AllUsers() {
			continue // not root
		}
		text, remedy := d.sentence()
		expect.Equal(t, text, "the policy refused ada a run: "+want+" other programs hold 2 GiB, and "+want+" ration has 1 GiB")
		expect.Equal(t, remedy, "end some")
	}
}

// A refusal is no finding any more when the user has got a ration.
func TestDeniedUntilGranted(t *testing.T) {
	now := time.Now()
	before, since := now.Add(-time.Minute), now.Add(time.Second)
	of := func(path string, created time.Time, limit uint64) Job {
		return Job{Path: path, UID: 1000, Created: created, State: Idle, Devices: []Device{{Device: 0, Limited: true, Limit: limit}}}
	}
	own, run := job.OfUserPath(1000), job.RunPath(1000, "train")
	for name, c := range map[string]struct {
		jobs  []Job
		found int
	}{
		"no job":                                {nil, 1},
		"a job with less, from before":          {[]Job{of(own, before, 4)}, 1},
		"one that was lent":                     {[]Job{of(own, before, 0)}, 1},
		"a job with as much":                    {[]Job{of(own, before, 8)}, 0},
		"a part of it is a run's":               {[]Job{of(own, before, 3), of(run, since, 5)}, 0},
		"a run of what the user has left":       {[]Job{of(own, before, 1), of(run, since, 3)}, 1},
		"another user's":                        {[]Job{of(job.OfUserPath(1001), since, 8)}, 1},
		"a job of the user's own, of no policy": {[]Job{of("/run/user/1000/ration/x/region", since, 8)}, 1},
	} {
		m := Machine{Jobs: c.jobs, Denied: []Denied{{Time: now, UID: 1000, User: "ada", Count: 1, Asked: 8, Text: "no room"}}}
		expect.Equal(t, len(m.recentlyDenied(now)), c.found, name)
	}
}

// Nor is it one if the user got a ration later, even if that is gone again, or waits for one.
func TestDeniedSettled(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		settled bool
		waiting []Waiting
		found   int
	}{
		"refused":                 {false, nil, 1},
		"has got one":             {true, nil, 0},
		"waits":                   {false, []Waiting{{UID: 1000, Path: job.OfUserPath(1000)}}, 0},
		"another user waits":      {false, []Waiting{{UID: 1001, Path: job.OfUserPath(1001)}}, 1},
		"a run of the user waits": {false, []Waiting{{UID: 1000, Path: job.RunPath(1000, "train")}}, 1},
	} {
		m := Machine{Waiting: c.waiting, Denied: []Denied{{Time: now, UID: 1000, User: "ada", Count: 1, Settled: c.settled, Text: "no room"}}}
		expect.Equal(t, len(m.recentlyDenied(now)), c.found, name)
	}
}
