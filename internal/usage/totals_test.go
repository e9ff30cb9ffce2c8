package usage

import (
	"testing"
	"time"

	"ration/check/expect"
)

// Totals have all periods, also those that the file has dropped, until the account itself is forgotten. A new
// project of a job continues its total.
func TestTotals(t *testing.T) {
	old := levels
	defer func() { levels = old }()
	levels = []level{{"10s", Step, 6}, {"1m", time.Minute, 5}, {"1h", time.Hour, 30}, old[days]}
	s, path := openTest(t)
	renamed := train
	renamed.Project = "another"
	ada, eve := Subject{UID: train.UID, Owner: train.Owner}, Subject{UID: 7, Owner: "eve", Job: "once", Device: "GPU-0"}
	held := func(of Subject) uint64 {
		jobs, err := s.JobTotals([]Subject{of, renamed})
		expect.OK(t, err)
		return jobs[of].Held
	}
	var before uint64
	for hour := range 100 {
		p := Period{At: monday.Add(time.Duration(hour) * time.Hour), Watched: Step, Sums: map[Subject]Sums{train: {Held: 2}, serve: {Held: 1}}}
		if hour%2 == 1 {
			p.Sums = map[Subject]Sums{renamed: {Held: 2}}
		}
		if hour == 0 {
			p.Sums[eve] = Sums{Held: 5}
		}
		expect.OK(t, s.Add(p))
		users, err := s.UserTotals()
		expect.OK(t, err)
		expect.True(t, held(train) == before+2 && held(renamed) == held(train) && users[ada].Held == held(train), hour, held(train), users)
		before = held(train)
		if hour < 24 {
			expect.Equal(t, held(eve), 5)
		}
		if hour == 50 { // an agent that starts again
			expect.OK(t, s.Close())
			s, err = Open(path)
			expect.OK(t, err)
			s.db.NoSync = true
		}
	}
	expect.Equal(t, held(eve), 0)
	users, err := s.UserTotals()
	expect.OK(t, err)
	expect.Equal(t, len(users), 2)
	expect.OK(t, s.Close())
}
