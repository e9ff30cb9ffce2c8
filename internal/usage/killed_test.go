package usage

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"ration/check/expect"
)

// envWriter makes this test program a writer of accounts.
const envWriter = "USAGE_TEST_WRITER"

func TestMain(m *testing.M) {
	if path := os.Getenv(envWriter); path != "" {
		write(path)
	}
	os.Exit(m.Run())
}

// write adds periods until it is killed.
func write(path string) {
	s, err := Open(path)
	if err != nil {
		panic(err)
	}
	at := monday.Add(time.Duration(s.count[steps]) * Step)
	for {
		if err := s.Add(step(at, 1)); err != nil {
			panic(err)
		}
		at = at.Add(10 * time.Second)
	}
}

// The writer is killed at any instruction: afterwards all levels and the totals have the same periods.
func TestKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "usage.db")
	exe, err := os.Executable()
	expect.OK(t, err)
	var before uint64
	for range 20 {
		cmd := exec.Command(exe)
		cmd.Env = append(os.Environ(), envWriter+"="+path)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		expect.OK(t, cmd.Start())
		time.Sleep(50*time.Millisecond + time.Duration(rand.IntN(int(100*time.Millisecond))))
		expect.OK(t, cmd.Process.Kill())
		_ = cmd.Wait()
		s, err := Open(path)
		expect.OK(t, err)
		sum := sumOf(t, s, hours)
		expect.True(t, sum.Held/gib == 10*sum.Refused, "a part of a period", sum)
		expect.Equal(t, sumOf(t, s, days), sum)
		if s.count[steps] < levels[steps].most && s.count[minutes] < levels[minutes].most { // nothing was dropped yet
			expect.True(t, sumOf(t, s, steps) == sum && sumOf(t, s, minutes) == sum, sumOf(t, s, steps), sumOf(t, s, minutes), sum)
		}
		jobs, err := s.JobTotals([]Subject{train})
		expect.OK(t, err)
		users, err := s.UserTotals()
		expect.OK(t, err)
		expect.True(t, jobs[train] == sum && users[Subject{UID: train.UID, Owner: train.Owner}] == sum, "the totals differ:", jobs, users, sum)
		expect.True(t, sum.Held >= before, "what was written is lost:", sum.Held, before)
		before = sum.Held
		expect.OK(t, s.Close())
	}
	expect.True(t, before > 0, "the writer has written nothing")
}

// sumOf returns what a level has for train.
func sumOf(t *testing.T, s *Store, at int) (sum Sums) {
	t.Helper()
	expect.OK(t, s.db.View(func(tx *bbolt.Tx) error {
		r := reading{tx: tx, subjects: map[uint32]*Subject{}, visit: func(a *Account) {
			if *a.Subject == train {
				sum.add(a.Sums)
			}
		}, see: func(time.Time, time.Duration, time.Duration) {}, to: monday.AddDate(10, 0, 0)}
		for from := firstOf(tx, levels[at]); from.Before(r.to) && !from.IsZero(); {
			from = r.period(levels[at], from)
		}
		return r.err
	}))
	return sum
}
