package usage

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"ration/check/expect"
)

// writeYear writes a year of a machine with 8 GPUs and 50 users. In every hour each user has a job on a number of
// the devices; a user's job has a new name every week.
func writeYear(tb testing.TB, path string, devices int) *Store {
	tb.Helper()
	s, err := Open(path)
	expect.OK(tb, err)
	s.db.NoSync = true
	random := rand.New(rand.NewPCG(1, 2))
	for hour := range 365 * 24 {
		at := monday.Add(time.Duration(hour) * time.Hour)
		p := Period{At: at, Watched: time.Hour, Sums: map[Subject]Sums{}}
		day, week := 0.5+0.5*float64(hour%24)/23, hour/168
		for user := range 50 {
			for n := range devices {
				subject := Subject{UID: 1000 + user, Owner: fmt.Sprintf("user%02d", user), Job: fmt.Sprintf("train-%d", week), Project: fmt.Sprintf("project-%d", user%7), Device: fmt.Sprintf("GPU-%08d-1111-2222-3333-%012d", (user+n)%8, (user+n)%8)}
				bytes := uint64(float64(random.Uint64N(20<<30)) * day)
				busy := random.Float64() * day * float64(time.Hour) * 8 / 50 / float64(devices)
				sums := Sums{Held: bytes * 3600, Reserved: 20 << 30 * 3600, Error: bytes, Measured: uint64(busy), Peak: bytes + 1<<20}
				if user%2 == 0 {
					sums.Measured, sums.Sampled = 0, sums.Measured
				}
				if user%5 == 0 {
					sums.Idle = sums.Held / 10 * uint64(random.IntN(10))
				}
				p.Sums[subject] = sums
			}
		}
		expect.OK(tb, s.Add(p))
	}
	return s
}

// A report of a year, and one with plots, read a record for each day, not for each hour.
func TestYearReadsDays(t *testing.T) {
	s, _ := openTest(t)
	for hour := range 365 * 24 {
		expect.OK(t, s.Add(Period{At: monday.Add(time.Duration(hour) * time.Hour), Watched: time.Hour, Sums: map[Subject]Sums{train: {Held: 1}}}))
	}
	from, to := monday.Add(time.Hour), monday.AddDate(0, 0, 365).Add(-time.Hour)
	expect.Equal(t, records(t, s, from, to), 363+23+23)
	r, err := s.ReportPlot(from, to, ByUser, everybody)
	expect.OK(t, err)
	expect.True(t, r.Total.Held == 365*24-2 && r.Plot.From.Equal(monday) && r.Plot.Watched[0] == 47*3600, r.Total, r.Plot.From, r.Plot.Watched[0])
	for i, p := range r.Plot.All[1 : len(r.Plot.All)-1] {
		expect.Must(t, p.Held == 48, "step", i+1, p)
	}
}

// BenchmarkYear has the size of a year's accounts of 8 GPUs and 50 users, and how long a report of it takes, also in the
// time of a processor. docs/monitoring.md has the numbers.
func BenchmarkYear(b *testing.B) {
	for _, devices := range []int{2, 8} { // on which each user has a job
		b.Run(fmt.Sprintf("devices=%d", devices), func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "usage.db")
			s := writeYear(b, path, devices)
			st, err := os.Stat(path)
			expect.OK(b, err)
			b.Run("report", func(b *testing.B) { benchmarkYear(b, s, st.Size(), s.Report) })
			b.Run("plot", func(b *testing.B) { benchmarkYear(b, s, st.Size(), s.ReportPlot) })
			expect.OK(b, s.Close())
		})
	}
}

func benchmarkYear(b *testing.B, s *Store, size int64, read func(from, to time.Time, by string, visible func(int) bool) (Report, error)) {
	began := processorTime()
	for b.Loop() {
		_, err := read(monday, monday.AddDate(0, 0, 365), ByUser, everybody)
		expect.OK(b, err)
	}
	b.ReportMetric((processorTime()-began).Seconds()/float64(b.N), "cpu-s/op")
	b.ReportMetric(float64(size)/1e6, "MB")
	b.ReportMetric(float64(s.count[hours])/24, "days")
}

func processorTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // cannot fail
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
