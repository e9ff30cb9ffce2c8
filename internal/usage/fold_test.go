package usage

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"ration/check/expect"
)

// A user with many names of jobs, and one whose subordinate users have them, take no day from the accounts of another:
// the jobs of their old days become one. No sum changes, for hours and for days.
func TestManyNames(t *testing.T) {
	was := levels[minutes].most
	levels[minutes].most = 4
	t.Cleanup(func() { levels[minutes].most = was })
	s, _ := openTest(t)
	s.maxSize = 1 << 20
	const first, all, names = 100_000, 40, 100
	s.account = func(uid int) int {
		if uid >= first {
			return 7777
		}
		return uid
	}
	hour := func(n int) time.Time { return monday.AddDate(0, 0, n/2).Add(time.Duration(n%2) * time.Hour) }
	for n := range 2 * all {
		p := Period{At: hour(n), Watched: time.Hour, Sums: map[Subject]Sums{train: {Held: 5, Peak: 5}}}
		p.Sums[Subject{Owner: "root", Job: fmt.Sprint("pod-", n), Project: "lab", Device: uuid}] = Sums{Held: 1}
		for i := range names {
			p.Sums[Subject{UID: 6666, Owner: "eve", Job: fmt.Sprint(n/2, "-", i, strings.Repeat("x", 50)), Project: fmt.Sprint(i), Device: uuid}] = Sums{Held: 2, Reserved: 1 << 60, Peak: uint64(i), Refused: 1}
			p.Sums[Subject{UID: first + i, Owner: fmt.Sprint(first + i), Job: fmt.Sprint(n / 2), Device: uuid}] = Sums{Held: 3}
		}
		expect.OK(t, s.Add(p))
	}
	end := monday.AddDate(0, 0, all)
	for _, from := range []time.Time{monday, monday.Add(time.Hour)} { // of whole days, and of an hour
		hours := uint64(2 * all)
		if from != monday {
			hours--
		}
		r, err := s.Report(from, end, ByUser, everybody)
		expect.OK(t, err)
		of := map[string]Line{}
		subordinates := uint64(0)
		for _, l := range r.Lines {
			of[l.User] = l
			if strings.HasPrefix(l.User, "100") {
				subordinates += l.Held
			}
		}
		expect.Equal(t, of["ada"].Held, 5*hours)
		expect.Equal(t, of["eve"].Held, 2*hours*names)
		expect.Equal(t, of["eve"].Refused, hours*names)
		expect.Equal(t, of["eve"].Peak, names-1)
		expect.Equal(t, subordinates, 3*hours*names)
	}
	old := func(day int) (lines map[string]int) {
		r, err := s.Report(monday.AddDate(0, 0, day), monday.AddDate(0, 0, day+1), ByJob, everybody)
		expect.OK(t, err)
		lines = map[string]int{}
		for _, l := range r.Lines {
			user := l.User
			if strings.HasPrefix(user, "100") {
				user = "subordinate"
			}
			lines[user+" "+l.Project]++
			expect.True(t, l.User != "ada" || l.Job == train.Job && l.Held == 10, l)
		}
		return lines
	}
	expect.Equal(t, fmt.Sprint(old(0)), fmt.Sprint(map[string]int{"ada " + train.Project: 1, "eve ": 1, "root lab": 2, "subordinate ": 1}))
	expect.Equal(t, old(all - 1)["subordinate "], names, "of the last day")
}

func TestFairShare(t *testing.T) {
	for _, tt := range []struct{ few, some, many, away, want int }{
		{1, 10, 100, 20, 80},
		{1, 10, 100, 95, 7},
		{1, 10, 100, 111, 0},
		{1, 10, 100, 1000, 0},
		{5, 5, 5, 3, 4},
	} {
		expect.Equal(t, fairShare(map[int]int{1: tt.few, 2: tt.some, 3: tt.many}, tt.away), tt.want, tt)
	}
}
