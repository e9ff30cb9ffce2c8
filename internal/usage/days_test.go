package usage

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"ration/check/expect"
	"ration/machine"
)

// writeHours writes an hour at a time, of which the first ones are from a number of hours after monday on.
func writeHours(t *testing.T, s *Store, from, n int) {
	t.Helper()
	for hour := from; hour < from+n; hour++ {
		p := step(monday.Add(time.Duration(hour)*time.Hour), 1)
		p.Watched = time.Hour
		expect.OK(t, s.Add(p))
	}
}

// asEarlier does what a version does that keeps no days.
func asEarlier(t *testing.T, s *Store, do func()) {
	t.Helper()
	var stamp uint64
	inDays := func(f func(*bbolt.Bucket) error) {
		expect.OK(t, s.db.Update(func(tx *bbolt.Tx) error { return f(tx.Bucket([]byte(levels[days].name))) }))
	}
	kept := map[string][]byte{}
	inDays(func(b *bbolt.Bucket) error {
		stamp = b.Sequence()
		return b.ForEach(func(k, v []byte) error { kept[string(k)] = bytes.Clone(v); return nil })
	})
	do()
	inDays(func(b *bbolt.Bucket) error {
		var all [][]byte
		_ = b.ForEach(func(k, _ []byte) error { all = append(all, bytes.Clone(k)); return nil })
		for _, k := range all {
			expect.OK(t, b.Delete(k))
		}
		for k, v := range kept {
			expect.OK(t, b.Put([]byte(k), v))
		}
		return b.SetSequence(stamp)
	})
}

// records returns how many records a report reads.
func records(t *testing.T, s *Store, from, to time.Time) (n int) {
	t.Helper()
	_, err := s.read(from, to, levels[days].span, func(*Account) {}, func(time.Time, time.Duration, time.Duration) { n++ })
	expect.OK(t, err)
	return n
}

// A report of a long time reads a record for each day, and hours only at its edges. It has what the hours have.
func TestLongReportReadsDays(t *testing.T) {
	s, _ := openTest(t)
	writeHours(t, s, 0, 30*24)
	from, to := monday.Add(5*time.Hour), monday.Add(29*24*time.Hour+7*time.Hour)
	expect.Equal(t, records(t, s, from, to), 28+19+7)
	held, began, seen := heldBetween(t, s, from, to)
	expect.True(t, held == uint64(to.Sub(from).Hours())*10 && seen == to.Sub(from) && began.Equal(from), held, seen, began)
}

// A file of a version that kept no days gets them when an agent opens it, and is read without them before.
func TestFileWithoutDays(t *testing.T) {
	s, path := openTest(t)
	asEarlier(t, s, func() { writeHours(t, s, 3, 100) })
	expect.OK(t, s.db.Update(func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte(levels[days].name)) }))
	expect.OK(t, s.Close())
	end := monday.Add(200 * time.Hour)
	reader, err := OpenReadOnly(path)
	expect.OK(t, err)
	held, _, _ := heldBetween(t, reader, monday, end)
	expect.OK(t, reader.Close())
	expect.Equal(t, held, 1000)
	again, err := Open(path)
	expect.OK(t, err)
	defer again.Close()
	held, _, seen := heldBetween(t, again, monday, end)
	expect.True(t, held == 1000 && seen == 100*time.Hour && again.count[days] == 5 && sumOf(t, again, days) == sumOf(t, again, hours), held, seen, again.count)
	expect.Equal(t, records(t, again, monday.Add(24*time.Hour), end), 4)
}

// An earlier version that writes hours between two later ones makes no report wrong: the days are not used until an
// agent has opened the file, which adds them up anew.
func TestDaysThatLackHours(t *testing.T) {
	s, path := openTest(t)
	writeHours(t, s, 0, 30)
	asEarlier(t, s, func() { writeHours(t, s, 30, 30) })
	expect.OK(t, s.Close())
	s, err := OpenReadOnly(path)
	expect.OK(t, err)
	held, _, seen := heldBetween(t, s, monday, monday.Add(120*time.Hour))
	expect.True(t, held == 600 && seen == 60*time.Hour, held, seen)
	expect.OK(t, s.Close())
	s, err = Open(path)
	expect.OK(t, err)
	defer s.Close()
	writeHours(t, s, 60, 60)
	held, _, seen = heldBetween(t, s, monday, monday.Add(120*time.Hour))
	expect.True(t, held == 1200 && seen == 120*time.Hour && sumOf(t, s, days) == sumOf(t, s, hours), held, seen)
	expect.Equal(t, records(t, s, monday, monday.Add(120*time.Hour)), 5)
}

// A clock that goes back into the oldest day, whose first hours were dropped, makes no day of what it adds there.
func TestClockGoesBackToFirstDay(t *testing.T) {
	old := levels
	defer func() { levels = old }()
	levels = []level{{"10s", Step, 6}, {"1m", time.Minute, 5}, {"1h", time.Hour, 30}, old[days]}
	s, _ := openTest(t)
	writeHours(t, s, 0, 40) // ten are dropped
	writeHours(t, s, 12, 1)
	expect.Equal(t, s.count[days], 1)
	held, _, _ := heldBetween(t, s, monday, monday.Add(48*time.Hour))
	expect.Equal(t, held, 310)
}

// A clock that goes back to the only hour that is left of the oldest day makes no day of what it adds there: that would
// lack what the hour had. It shows when the clock goes back further, to an hour before the day.
func TestClockGoesBackToLastHourOfFirstDay(t *testing.T) {
	s, _ := openTest(t)
	writeHours(t, s, 0, 24)
	s.maxSize = 1 // each hour drops one
	writeHours(t, s, 24, 23)
	s.maxSize = MaxSize
	writeHours(t, s, 23, 1)
	writeHours(t, s, -1, 1)
	held, _, _ := heldBetween(t, s, monday, monday.Add(24*time.Hour))
	expect.Equal(t, held, 20)
}

// A report that reads days has what the hours have, also if the clock was changed, hours were dropped, or an earlier version has written.
func TestDaysHaveTheirHours(t *testing.T) {
	old := levels
	defer func() { levels = old }()
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 1))
		levels = []level{{"10s", Step, 6}, {"1m", time.Minute, 5}, {"1h", time.Hour, 26 + r.IntN(60)}, old[days]}
		s, path := openTest(t)
		at := monday
		for range 200 {
			at = at.Add(time.Duration(r.IntN(5000)) * time.Second)
			switch r.IntN(12) {
			case 0:
				at = at.Add(time.Duration(r.IntN(60)) * time.Hour)
			case 1:
				at = at.Add(-time.Duration(r.IntN(70)) * time.Hour)
			}
			add := func() { expect.OK(t, s.Add(step(at, uint64(1+r.IntN(5))))) }
			if s.maxSize = MaxSize; r.IntN(3) == 0 {
				s.maxSize = 1 // drops an hour
			}
			if r.IntN(40) > 0 {
				add()
			} else {
				asEarlier(t, s, add)
				expect.OK(t, s.Close())
				var err error
				s, err = Open(path)
				expect.OK(t, err)
				s.db.NoSync = true
			}
			from := at.Add(time.Duration(r.IntN(200)-150) * time.Hour)
			to := from.Add(time.Duration(r.IntN(200*3600)) * time.Second)
			sum := func(resolution time.Duration) (sums Sums, seen time.Duration) {
				_, err := s.read(from, to, resolution, func(a *Account) { sums.add(a.Sums) }, func(_ time.Time, _, d time.Duration) { seen += d })
				expect.OK(t, err)
				return sums, seen
			}
			byDay, daySeen := sum(levels[days].span)
			byHour, hourSeen := sum(levels[hours].span)
			expect.Must(t, byDay == byHour && daySeen == hourSeen, "seed", seed, from, to, byDay, daySeen, byHour, hourSeen)
		}
		expect.OK(t, s.Close())
	}
}

// A job that sleeps holds and reserves nothing. Its time asleep counts on each device of which it has memory put aside,
// unless the driver counts memory for it.
func TestMeterAsleep(t *testing.T) {
	with := func(sleep string, used, aside, driver uint64) *machine.Machine {
		mc := machineWith(used, 10*gib, driver, "train")
		d := &mc.Jobs[0].Devices[0]
		mc.Jobs[0].Sleep, d.Aside, d.Peak = sleep, aside, 4*gib
		other := *d
		other.UUID, other.Aside, other.Used, other.Driver = "GPU-1", 0, 0, 0
		mc.Jobs[0].Devices = append(mc.Jobs[0].Devices, other)
		return mc
	}
	m, at := NewMeter(), monday
	for _, mc := range []*machine.Machine{
		with("", 4*gib, 0, 4*gib),
		with(machine.FallingAsleep, 4*gib, 0, 4*gib), // 1 s awake
		with(machine.Asleep, 0, 4*gib, 0),            // 1 s falling asleep
		with(machine.Asleep, 0, 4*gib, 0),            // 1 s asleep
		with(machine.Waking, 4*gib, 0, 0),            // 1 s asleep
		with(machine.Asleep, 0, 4*gib, 4*gib),        // 1 s waking; then it claims to sleep, and the driver knows better
		with("", 4*gib, 0, 4*gib),                    // 1 s of that claim
	} {
		m.Look(mc, at)
		at = at.Add(time.Second)
	}
	sums := m.Take().Sums
	got := sums[train]
	expect.Equal(t, got.Asleep, uint64(2*time.Second))
	expect.Equal(t, got.Held, 4*4*gib)
	expect.Equal(t, got.Reserved, 4*10*gib)
	other := train
	other.Device = "GPU-1"
	expect.Equal(t, sums[other].Asleep, 0)
}
