package region

import (
	"os"
	"path/filepath"
	"testing"

	"ration/check/expect"
	"ration/internal/abi"
)

// A share, a cap and the round are set by the first process that brings them, each by
// itself, and not by a later one; one that was set to none is not brought back.
func TestFirstComputeStands(t *testing.T) {
	path := filepath.Join(t.TempDir(), "region")
	bring := func(share, most, round uint64) Limits {
		var l Limits
		l.Compute[1], l.ComputeMax[1], l.Round = share, most, round
		return l
	}
	for i, c := range []struct {
		own     Limits
		want    Compute
		differs bool
	}{
		{Limits{}, Compute{Round: abi.DefaultRound}, false},
		{bring(30, 0, 0), Compute{Share: 30, Round: abi.DefaultRound}, false},
		{bring(35, 50, 10_000), Compute{Share: 30, Max: 50, Round: 10_000}, true}, // its share is too late, the rest is not
		{bring(30, 50, 0), Compute{Share: 30, Max: 50, Round: 10_000}, false},
		{bring(40, 50, 5000), Compute{Share: 30, Max: 50, Round: 10_000}, true},
		{bring(30, 60, 5000), Compute{Share: 30, Max: 50, Round: 10_000}, true},
	} {
		r, err := Open(path, Options{Limits: c.own})
		must(t, err)
		checkCompute(t, r, c.want)
		d, err := r.Differences(c.own)
		must(t, err)
		expect.True(t, (len(d) > 0) == c.differs && (!c.differs || d[0] == 1), "process", i, "differences on devices", d)
		must(t, r.Close())
	}
	r, err := Open(path, Options{})
	must(t, err)
	must(t, r.SetCompute(1, abi.ComputeNone))
	must(t, r.SetComputeMax(1, 90))
	must(t, r.Close())
	r, err = Open(path, Options{Limits: bring(30, 50, 10_000)})
	must(t, err)
	defer r.Close()
	checkCompute(t, r, Compute{Max: 90, Round: 10_000})
	expect.Equal(t, r.limits.Changes, 2, "changes are counted, want 2")
}

func checkCompute(t *testing.T, r *Region, want Compute) {
	t.Helper()
	got, err := r.Compute(1)
	must(t, err)
	expect.Equal(t, got, want)
}

// What an operator wrote counts, and a process's own does not.
func TestOperatorsCompute(t *testing.T) {
	path := filepath.Join(t.TempDir(), "region")
	var operators, own Limits
	operators.Compute[1], operators.Round = 20, 40_000
	own.Compute[1], own.ComputeMax[1], own.Round = 90, 90, 1000
	must(t, WriteLimitsFile(path, operators))
	r, err := Open(path, Options{Limits: own})
	must(t, err)
	defer r.Close()
	checkCompute(t, r, Compute{Share: 20, Round: 40_000})
	seen, err := OpenReadOnly(path)
	must(t, err)
	defer seen.Close()
	checkCompute(t, seen, Compute{Share: 20, Round: 40_000})
	must(t, r.SetCompute(1, 35)) // the operator is us
	must(t, seen.Refresh())
	checkCompute(t, seen, Compute{Share: 35, Round: 40_000})
	_, err = os.Stat(path + LimitsSuffix)
	expect.Equal(t, err, nil)
}

// Words that no version of ration writes limit nothing, and give no round.
func TestComputeOutOfBounds(t *testing.T) {
	r, _ := overHeap(t)
	for _, word := range []uint64{101, 255, 1 << 40, 1<<64 - 1} {
		r.limits.Device[1].Compute, r.limits.Device[1].ComputeMax, r.limits.Round = word, word, word*1000+7
		checkCompute(t, r, Compute{Round: abi.RoundOf(word*1000 + 7)})
	}
	for word, want := range map[uint64]uint64{0: abi.DefaultRound, 999: abi.DefaultRound, 1000: 1000, 200_000: 200_000, 200_001: abi.DefaultRound} {
		expect.Equal(t, abi.RoundOf(word), want, "a round of", word)
	}
}

// What a process has of a device's time is read from outside, and not believed of the one
// that had its slot before.
func TestProcessCompute(t *testing.T) {
	r := open(t, 10*MiB)
	s := claim(t, r)
	must(t, s.Charge(0, abi.Context, MiB))
	a := &r.m.Accounts[0][s.index]
	want := ProcessCompute{abi.MakeWork(1234, 2, true), abi.MakeSlice(3000, abi.SliceKept), 5, 6}
	a.Work, a.Slice, a.TimeUsed, a.TimeWaited = uint64(want.Work), uint64(want.Slice), want.Used, want.Waited
	r.m.Compute[0].Used, r.m.Compute[0].Waited = 5, 6
	seen, err := OpenReadOnly(r.path)
	must(t, err)
	defer seen.Close()
	got, err := seen.ProcessCompute(0, s.index)
	expect.True(t, err == nil && got == want, got, err, want)
	all, err := seen.Compute(0)
	expect.True(t, err == nil && all.Used == 5 && all.Waited == 6, all, err)
	a.Gen++
	got, err = r.ProcessCompute(0, s.index)
	expect.True(t, err == nil && got == (ProcessCompute{}), "of another generation", got, err)
	a.Gen--
}

// The work that a dead process had under way is charged to its job's cap, once, by the process that
// returns its memory: from when it began until now, and ten seconds at most.
func TestADeadProcessIsChargedForItsWork(t *testing.T) {
	const second = 1_000_000_000
	now := Monotonic()
	for _, c := range []struct {
		name        string
		ago, charge uint64
		percent     uint64
		gen         uint64 // added to the account's generation
	}{
		{"half a second", second / 2, second / 2, 20, 0},
		{"more than ten seconds", 60 * second, 10 * second, 20, 0},
		{"no work", now, 0, 20, 0},
		{"no cap", second / 2, 0, 0, 0},
		{"an earlier process's work", second / 2, 0, 20, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, m := overHeap(t)
			if c.percent > 0 {
				must(t, r.SetComputeMax(1, c.percent))
			}
			s := claim(t, r)
			words, a := &r.m.Compute[1], &r.m.Accounts[1][s.Index()]
			a.Gen = s.status.Gen() + c.gen
			a.Uncharged = now - c.ago
			// What another process has claimed of it is not charged again.
			words.Clock = clockZero()
			claimed := uint64(0)
			if c.ago == second/2 {
				claimed = capWords{words}.claim(now-second/4, now-second/8)
			}
			m.kill(s.Index())
			for range 2 {
				_, err := r.Reap()
				must(t, err)
			}
			want, slack := c.charge-min(claimed, c.charge), uint64(second/20)
			if c.percent == 0 || c.gen > 0 {
				want, slack = 0, 0
			}
			expect.True(t, words.Used >= want && words.Used <= want+slack, "charged", words.Used, "want", want)
			debt := abi.Due(words.Due).Time()
			expect.True(t, (want > 0) == (debt > now), "due in", int64(debt-now))
			expect.True(t, want == 0 || debt <= now+want*100/20, "due in", int64(debt-now), "more than was charged")
		})
	}
}

// Words of another boot's clock are cleared, once; those of this boot stay.
func TestWordsOfAnotherBootAreCleared(t *testing.T) {
	zero := clockZero()
	for _, c := range []struct {
		clock   uint64
		cleared bool
	}{
		{zero, false},
		{zero + clockApart/2, false},
		{zero - clockApart/2, false},
		{zero + 2*clockApart, true},
		{zero - 2*clockApart, true},
		{0, true},
	} {
		words := &abi.Compute{Clock: c.clock, Due: 5, Used: 7}
		words.Parts[3], words.Parts[abi.Parts-1] = 1, 2
		capWords{words}.renew()
		expect.Equal(t, words.Due == 0 && words.Parts[3] == 0 && words.Parts[abi.Parts-1] == 0, c.cleared)
		expect.True(t, sameClock(words.Clock, zero), "the clock that is noted")
		expect.Equal(t, words.Used, 7)
	}
}
