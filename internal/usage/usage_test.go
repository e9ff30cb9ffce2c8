package usage

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"ration/check/expect"
	"ration/internal/job"
	"ration/machine"
)

const gib = 1 << 30

var (
	monday = time.Date(2026, 11, 16, 0, 0, 0, 0, time.UTC)
	train  = Subject{UID: 1000, Owner: "ada", Job: "train", Device: "GPU-0"}
	serve  = Subject{UID: 1001, Owner: "bob", Job: "serve", Project: "shop", Device: "GPU-1"}
)

func openTest(t *testing.T) (*Store, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "usage.db")
	s, err := Open(path)
	expect.OK(t, err)
	t.Cleanup(func() { _ = s.Close() })
	s.db.NoSync = true // nobody pulls the plug of a test
	return s, path
}

// step is a period in which train held a number of GiB.
func step(at time.Time, held uint64) Period {
	return Period{At: at, Watched: Step, Sums: map[Subject]Sums{train: {Held: held * gib * 10, Peak: held * gib, Refused: 1}, serve: {Held: 1}}}
}

func everybody(int) bool { return true }

// held returns what train held between two times, in GiB-seconds.
func heldBetween(t *testing.T, s *Store, from, to time.Time) (gibSeconds uint64, began time.Time, seen time.Duration) {
	t.Helper()
	var sum uint64
	began, seen, err := s.Read(from, to, func(a *Account) {
		if *a.Subject == train {
			sum += a.Held
		}
	})
	expect.OK(t, err)
	return sum / gib, began, seen
}

// Whatever the resolution, each second counts once.
func TestReadCountsOnce(t *testing.T) {
	s, _ := openTest(t)
	end := monday.Add(3*time.Hour + 20*time.Minute + 30*time.Second)
	for at := monday; at.Before(end); at = at.Add(Step) {
		expect.OK(t, s.Add(step(at, 1)))
	}
	for name, tt := range map[string]struct {
		from, to time.Duration
		want     time.Duration // 0: as long as from to
		began    time.Duration
	}{
		"all":                   {0, 4 * time.Hour, end.Sub(monday), 0},
		"before there was any":  {-time.Hour, 4 * time.Hour, end.Sub(monday), -time.Hour},
		"whole hours":           {time.Hour, 3 * time.Hour, 0, time.Hour},
		"minutes at both edges": {30 * time.Minute, 3*time.Hour + 5*time.Minute, 0, 30 * time.Minute},
		"seconds at the end":    {3 * time.Hour, 3*time.Hour + 10*time.Minute + 20*time.Second, 0, 3 * time.Hour},
		"seconds at both":       {3*time.Hour + 10*time.Second, 3*time.Hour + 20*time.Second, 0, 3*time.Hour + 10*time.Second},
		// Ten seconds are kept for an hour: earlier ones are read as a minute.
		"seconds long ago": {time.Hour + 10*time.Second, time.Hour + 20*time.Second, time.Minute, time.Hour + 10*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			got, began, seen := heldBetween(t, s, monday.Add(tt.from), monday.Add(tt.to))
			want := tt.want
			if want == 0 {
				want = tt.to - tt.from
			}
			expect.Equal(t, got, uint64(want.Seconds()))
			expect.Equal(t, seen, want)
			expect.True(t, began.Equal(monday.Add(tt.began)), began)
		})
	}
}

// A level keeps its number of periods, and a clock that jumps a year ahead and back drops one, not all.
func TestLevelsAreBounded(t *testing.T) {
	old := levels
	defer func() { levels = old }()
	levels = []level{{"10s", Step, 6}, {"1m", time.Minute, 5}, {"1h", time.Hour, 48}, old[days]}
	s, path := openTest(t)
	for at := monday; at.Before(monday.Add(49 * time.Hour)); at = at.Add(time.Hour) {
		p := step(at, 1)
		p.Sums[Subject{UID: 1, Owner: "eve", Job: at.String(), Device: "GPU-0"}] = Sums{Held: 1}
		expect.OK(t, s.Add(p))
	}
	expect.OK(t, s.Add(step(monday.AddDate(1, 0, 0), 1)))
	got, _, _ := heldBetween(t, s, monday, monday.Add(50*time.Hour))
	expect.Equal(t, got, 47*10) // of 49 hours two were dropped, one of them for that of the jump
	expect.Equal(t, s.count[hours], 48)
	expect.OK(t, s.Close())
	again, err := Open(path)
	expect.OK(t, err)
	defer again.Close()
	expect.Equal(t, again.count[hours], 48)
	expect.Equal(t, again.count[steps], 6)
	expect.Equal(t, again.count[days], s.count[days]) // the first day went with its first hour
	expect.Equal(t, again.count[days], 3)
}

// On a machine that is off at midnight, subjects that no hour mentions any more go, too, with their totals.
func TestSweepWithoutMidnight(t *testing.T) {
	old := levels
	defer func() { levels = old }()
	levels = []level{{"10s", Step, 6}, {"1m", time.Minute, 5}, {"1h", time.Hour, 48}, old[days]}
	s, _ := openTest(t)
	for day := range 40 {
		for hour := 7; hour < 19; hour++ {
			p := step(monday.Add(time.Duration(24*day+hour)*time.Hour), 1)
			p.Sums[Subject{UID: 1, Owner: "eve", Job: p.At.String(), Device: "GPU-0"}] = Sums{Held: 1}
			expect.OK(t, s.Add(p))
		}
	}
	expect.OK(t, s.db.View(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{bucketSubjects, bucketNumbers, bucketJobTotals} {
			n := tx.Bucket(name).Stats().KeyN
			expect.True(t, n >= 50 && n <= 50+12, string(name), n) // those of 48 hours, and of a day at most
		}
		return nil
	}))
}

// A time that no key can have, after 2106, is not that of another period, neither in a report nor when the clock is wrong.
func TestTimesWithoutKey(t *testing.T) {
	s, path := openTest(t)
	year := func(n int) time.Time { return time.Date(n, 3, 4, 5, 6, 7, 0, time.UTC) }
	check := func(from, to time.Time, want uint64) {
		t.Helper()
		held, _, _ := heldBetween(t, s, from, to)
		expect.Equal(t, held, want, from, to)
	}
	writeHours(t, s, 0, 50)
	check(year(2150), year(2160), 0)
	check(year(1), year(9999), 500)
	for hour := range 50 {
		expect.OK(t, s.Add(step(year(2150).Add(time.Duration(hour)*time.Hour), 1)))
	}
	writeHours(t, s, 50, 10)
	check(year(1), year(9999), 1100)
	check(monday, monday.AddDate(0, 0, 5), 600)
	check(year(2150), year(2160), 0)
	expect.Equal(t, sumOf(t, s, days), sumOf(t, s, hours))
	expect.OK(t, s.Close())
	again, err := Open(path)
	expect.OK(t, err)
	expect.OK(t, again.Close())
}

// A key that is not the beginning of a period does not keep a report going for ever.
func TestDamagedKey(t *testing.T) {
	for _, l := range levels[:days] { // days are then added up anew
		s, path := openTest(t)
		writeHours(t, s, 0, 50)
		expect.OK(t, s.db.Update(func(tx *bbolt.Tx) error {
			return tx.Bucket([]byte(l.name)).Put(keyOf(monday.Add(-12345*time.Second)), (&record{}).encode())
		}))
		_, _, err := s.Read(monday.AddDate(0, 0, -3), monday.AddDate(0, 0, 3), func(*Account) {})
		expect.True(t, errors.Is(err, ErrBroken) == (l.name == levels[hours].name), l.name, err)
		expect.OK(t, s.Close())
		_, err = Open(path)
		expect.True(t, errors.Is(err, ErrBroken), l.name, err)
	}
}

// When the file is too large, the oldest hours go; what is new is kept.
func TestSizeIsBounded(t *testing.T) {
	s, _ := openTest(t)
	s.maxSize = 1 << 20
	for i := range 2000 {
		p := Period{At: monday.Add(time.Duration(i) * time.Hour), Watched: Step, Sums: map[Subject]Sums{train: {Held: gib}}}
		for n := range 20 {
			p.Sums[Subject{UID: 1, Owner: "eve", Job: p.At.String() + string(rune('a'+n)), Device: "GPU-0"}] = Sums{Held: 1}
		}
		expect.OK(t, s.Add(p))
	}
	st, err := os.Stat(s.db.Path())
	expect.OK(t, err)
	expect.True(t, st.Size() <= 6*s.maxSize, st.Size()) // 18 MiB without a bound; subjects go once for each day
	last, _, _ := heldBetween(t, s, monday.Add(1999*time.Hour), monday.Add(2001*time.Hour))
	expect.Equal(t, last, 1)
}

func TestReport(t *testing.T) {
	s, _ := openTest(t)
	expect.OK(t, s.Add(Period{At: monday, Watched: Step, Sums: map[Subject]Sums{
		train: {Held: 100, Idle: 40, Measured: 2e9, Sampled: 1e9, Peak: 7, Refused: 1},
		{UID: 1000, Owner: "ada", Job: "train", Device: "GPU-1"}: {Held: 50, Peak: 9, Died: 2},
		serve: {Held: 500, Reserved: 800},
	}}))
	report := func(by string, visible func(int) bool) Report {
		r, err := s.Report(monday, monday.Add(time.Hour), by, visible)
		expect.OK(t, err)
		return r
	}
	users := report(ByUser, everybody)
	expect.True(t, slices.Equal(users.Lines, []Line{{User: "bob", Held: 500, Reserved: 800}, {User: "ada", Held: 150, Idle: 40, Seconds: 3, Sampled: 1, Peak: 9, Refused: 1, Died: 2}}), users.Lines)
	expect.Equal(t, users.Total.Held, 650)
	expect.Equal(t, users.Watched, 10)
	expect.Equal(t, report(ByJob, everybody).Lines[1].Job, "train")
	expect.Equal(t, len(report(ByGPU, everybody).Lines), 2)
	expect.Equal(t, report(ByProject, everybody).Lines[0].Project, "shop")
	mine := report(ByUser, func(uid int) bool { return uid == 1000 })
	expect.True(t, len(mine.Lines) == 1 && mine.Total.Held == 150, mine)
	expect.OK(t, s.Add(Period{At: monday.Add(Step), Watched: Step, Sums: map[Subject]Sums{{UID: -1, Job: "/gone/region", Device: UnknownDevice}: {Died: 1}}}))
	for _, by := range []string{ByUser, ByJob} { // no line is without a user: one would look like the sum
		lines := report(by, everybody).Lines
		expect.True(t, lines[len(lines)-1].User == "(unknown)", lines)
	}
	_, err := s.Report(monday, monday, "colour", everybody)
	expect.True(t, err != nil)
}

// A damaged file is an error, and never ends the agent.
func TestDamaged(t *testing.T) {
	s, path := openTest(t)
	for i := range 100 {
		expect.OK(t, s.Add(step(monday.Add(time.Duration(i)*time.Hour), 1)))
	}
	expect.OK(t, s.Close())
	text, err := os.ReadFile(path)
	expect.OK(t, err)
	broken := [][]byte{[]byte("no accounts")}
	for at := 0; at < len(text); at += 4096 {
		overwritten := append([]byte(nil), text...)
		for i := at; i < min(at+64, len(text)); i++ {
			overwritten[i] = 0xff
		}
		broken = append(broken, overwritten, text[:at+1000], text[:at+4096])
	}
	for _, content := range broken {
		file := filepath.Join(t.TempDir(), "broken.db")
		expect.OK(t, os.WriteFile(file, content, 0o600))
		s, err := Open(file)
		if err != nil {
			expect.True(t, errors.Is(err, ErrBroken), "another error:", err)
			continue
		}
		_, _, _ = s.Read(monday, monday.Add(200*time.Hour), func(*Account) {})
		_ = s.Add(step(monday, 1))
		_ = s.Close()
	}
}

func machineWith(used, limit, driver uint64, jobs ...string) *machine.Machine {
	m := &machine.Machine{}
	for _, name := range jobs {
		m.Jobs = append(m.Jobs, machine.Job{Name: name, Path: "/" + name, Created: monday.Add(time.Second), UID: 1000, Owner: "ada", State: machine.Running,
			Devices: []machine.Device{{UUID: "GPU-0", Used: used, Limited: limit != 0, Limit: limit, Driver: driver, Total: 80 * gib, Peak: used}}})
	}
	return m
}

func TestMeter(t *testing.T) {
	m := NewMeter()
	at := monday
	look := func(after time.Duration, mc *machine.Machine) {
		at = at.Add(after)
		m.Look(mc, at)
	}
	look(0, machineWith(2*gib, 10*gib, 0, "train"))
	look(2*time.Second, machineWith(6*gib, 10*gib, 0, "train")) // 2 GiB for 2 s, perhaps 6
	look(time.Second, machineWith(6*gib, 10*gib, 0, "train"))   // 6 GiB for 1 s
	look(time.Minute, machineWith(6*gib, 10*gib, 0, "train"))   // nobody looked for a minute
	look(time.Second, machineWith(0, 10*gib, 9*gib, "train"))   // 6 GiB; then it writes 0, and the driver says 9
	look(time.Second, machineWith(0, 10*gib, 200*gib, "train")) // 9 GiB; then more than the device has
	ended := machineWith(0, 10*gib, 0, "train")
	ended.Jobs[0].State, ended.Jobs[0].Died, ended.Jobs[0].Devices[0].Refused = machine.Ended, 3, 2
	look(time.Second, ended) // 80 GiB; then three die, and it has ended
	ended.Jobs[0].Died = 4
	look(time.Second, ended)
	gone := machineWith(0, 10*gib, 0) // one more dies, and the policy takes the job back
	gone.Removed = append(gone.Removed, ended.Jobs...)
	gone.Removed[0].Died = 5
	for range 2 {
		look(0, gone)
	}
	p := m.Take()
	expect.Equal(t, p.Watched, 7*time.Second)
	got := p.Sums[train]
	expect.Equal(t, got.Held, uint64((2*2+6+6+9+80)*gib))
	expect.Equal(t, got.Error, uint64((4*2+3+71+80)*gib))
	expect.Equal(t, got.Reserved, uint64(10*6*gib))
	expect.Equal(t, got.Peak, 80*gib)
	expect.True(t, got.Died == 5 && got.Refused == 2, got)
	expect.Equal(t, len(m.Take().Sums), 0)
}

// A user's ration is reserved before the first program of that user: the policy knows the device. Another job's limit may
// be for a device that does not exist.
func TestMeterReservesRations(t *testing.T) {
	for path, want := range map[string]uint64{job.OfUserPath(1000): 20 * gib, "/train": 0} {
		m := NewMeter()
		for after := range 3 {
			mc := machineWith(0, 10*gib, 0, "train")
			mc.Jobs[0].Path = path
			m.Look(mc, monday.Add(time.Duration(after)*time.Second))
		}
		expect.Equal(t, m.Take().Sums[train].Reserved, want, path)
	}
}

// A counter counts once: not again when the device's UUID becomes known, nor by an agent that starts later.
func TestMeterCountsOnce(t *testing.T) {
	with := func(uuid string, refused uint64) *machine.Machine {
		mc := machineWith(gib, 0, 0, "train")
		mc.Jobs[0].Devices[0].UUID, mc.Jobs[0].Devices[0].Refused = uuid, refused
		return mc
	}
	total := func(m *Meter) (sum Sums) {
		for _, s := range m.Take().Sums {
			sum.add(s)
		}
		return sum
	}
	m := NewMeter()
	m.Look(&machine.Machine{}, monday)
	m.Look(&machine.Machine{}, monday.Add(1500*time.Millisecond)) // it is there, and cannot be read yet
	m.Look(with("", 2), monday.Add(2*time.Second))
	m.Look(with("GPU-0", 3), monday.Add(3*time.Second))
	m.Look(with("GPU-0", 1), monday.Add(4*time.Second))     // written back
	m.Look(with("GPU-0", 1<<40), monday.Add(5*time.Second)) // a lie
	expect.Equal(t, total(m).Refused, 3+maxCount)
	late := NewMeter()
	late.Look(&machine.Machine{}, monday.Add(6*time.Second))
	late.Look(with("GPU-0", 5), monday.Add(7*time.Second)) // it is older than this agent, which could not read it before
	late.Look(with("GPU-0", 6), monday.Add(8*time.Second))
	expect.Equal(t, total(late).Refused, 1)
}

// What a job held for less than the time between two looks is in its peak, once, and is no more than the device has.
func TestMeterPeak(t *testing.T) {
	with := func(peak uint64) *machine.Machine {
		mc := machineWith(gib, 0, 0, "train")
		mc.Jobs[0].Devices[0].Peak = peak
		return mc
	}
	m := NewMeter()
	m.Look(&machine.Machine{}, monday)
	m.Look(with(5*gib), monday.Add(time.Second))
	expect.Equal(t, m.Take().Sums[train].Peak, 5*gib)
	m.Look(with(5*gib), monday.Add(2*time.Second))
	expect.Equal(t, m.Take().Sums[train].Peak, gib)
	m.Look(with(500*gib), monday.Add(3*time.Second))
	expect.Equal(t, m.Take().Sums[train].Peak, 80*gib)
}

// A ration that a policy refused is a refusal of its user, once, whether or not the user has a job.
func TestMeterDenied(t *testing.T) {
	with := func(counts ...uint64) *machine.Machine {
		mc := &machine.Machine{Devices: []machine.GPU{{Device: 0, UUID: "GPU-0", Total: 80 * gib}}}
		for _, n := range counts {
			mc.Denied = append(mc.Denied, machine.Denied{UID: 71234, User: "71234", Count: n})
		}
		return mc
	}
	them := Subject{UID: 71234, Owner: "71234", Job: "71234", Device: "GPU-0"}
	m := NewMeter()
	m.Look(with(1, 2), monday) // before this agent
	m.Look(with(1, 2, 3, 4), monday.Add(time.Second))
	m.Look(with(1, 2, 3, 4), monday.Add(2*time.Second))
	expect.Equal(t, m.Take().Sums[them].Refused, 2)
	m.Look(with(), monday.Add(3*time.Second)) // the list is bounded
	m.Look(with(6, 7), monday.Add(4*time.Second))
	expect.Equal(t, m.Take().Sums[them].Refused, 2)
	has := with(6, 7, 8)
	has.Denied[2].Device = -1
	has.Jobs = []machine.Job{{Name: "71234", Path: job.OfUserPath(71234), Owner: "71234", UID: 71234, Labels: map[string]string{job.Project: "shop"},
		Devices: []machine.Device{{Device: 0, UUID: "GPU-0"}}}}
	m.Look(has, monday.Add(5*time.Second))
	them.Project = "shop"
	expect.Equal(t, m.Take().Sums[them].Refused, 1)
}

// Memory is idle only if the device's time is known of all processes, and was none.
func TestMeterIdle(t *testing.T) {
	times := func(all ...*machine.Time) []machine.Job {
		jobs := machineWith(gib, 0, 0, "train").Jobs
		for _, each := range all {
			jobs[0].Processes = append(jobs[0].Processes, machine.Process{Holdings: []machine.Holding{{Time: each}}})
		}
		return jobs
	}
	part := times(&machine.Time{About: true})
	part[0].Omitted = &machine.Omitted{Processes: 1}
	for name, tt := range map[string]struct {
		jobs []machine.Job
		want Sums
	}{
		"unknown":          {times(nil), Sums{Held: gib, Peak: gib}},
		"no work":          {times(&machine.Time{About: true}), Sums{Held: gib, Peak: gib, Idle: gib}},
		"unknown of one":   {times(&machine.Time{About: true}, nil), Sums{Held: gib, Peak: gib}},
		"some not in list": {part, Sums{Held: gib, Peak: gib}},
		"samples":          {times(&machine.Time{Percent: 50, About: true}, nil), Sums{Held: gib, Peak: gib, Sampled: 5e8}},
		"a lie":            {times(&machine.Time{Percent: 1e12, About: true}), Sums{Held: gib, Peak: gib, Sampled: 1e9}},
		"measured":         {times(&machine.Time{Percent: 25}), Sums{Held: gib, Peak: gib}}, // the job's counter has it
	} {
		t.Run(name, func(t *testing.T) {
			m := NewMeter()
			m.Look(machineWith(gib, 0, 0, "train"), monday)
			m.Times(&machine.Machine{Jobs: tt.jobs}, time.Second, monday)
			m.Look(machineWith(gib, 0, 0, "train"), monday.Add(time.Second))
			expect.Equal(t, m.Take().Sums[train], tt.want)
		})
	}
}

// The time that the library has measured counts to the nanosecond, and never more than all of the device's time.
func TestMeterMeasured(t *testing.T) {
	with := func(used uint64) *machine.Machine {
		mc := machineWith(gib, 0, 0, "train")
		mc.Jobs[0].Devices[0].Compute = &machine.Compute{Max: 50, Used: used}
		return mc
	}
	m, at := NewMeter(), monday
	total := func(counters ...uint64) uint64 {
		for _, used := range counters {
			at = at.Add(time.Second)
			m.Look(with(used), at)
		}
		return m.Take().Sums[train].Measured
	}
	expect.Equal(t, total(7e9), 0) // before this agent started
	expect.Equal(t, total(7e9+1, 7e9+300_000_001, 7e9+300_000_001), 300_000_001)
	expect.Equal(t, total(10e9, 10e9, 10e9, 10e9), 2_699_999_999) // a kernel of 2.7 seconds has ended
	expect.Equal(t, total(0), 0)                                  // written back
	expect.Equal(t, total(1<<60, 1<<60, 1<<60), 3e9)              // a lie
}

// A user with very many jobs has a bounded number of accounts, and none of the sum is lost.
func TestMeterBoundsSubjects(t *testing.T) {
	var names []string
	for i := range 3 * maxSubjects {
		names = append(names, time.Duration(i).String())
	}
	m := NewMeter()
	m.Look(machineWith(gib, 0, 0, names...), monday)
	m.Look(machineWith(gib, 0, 0, names...), monday.Add(time.Second))
	sums, all := m.Take().Sums, Sums{}
	expect.Equal(t, len(sums), maxSubjects+1)
	for _, s := range sums {
		all.add(s)
	}
	expect.Equal(t, all.Held, uint64(3*maxSubjects*gib))
	expect.Equal(t, sums[Subject{UID: 1000, Owner: "ada", Job: OtherJobs, Device: "GPU-0"}].Held, uint64(2*maxSubjects*gib))
}

// Time that was measured while another job, or a process of no job, may have worked on the device is marked: it is
// too much.
func TestMeterShared(t *testing.T) {
	for name, tt := range map[string]struct {
		jobs    []string
		known   bool // whether it is known of the others that they did nothing
		outside bool
		want    uint64
	}{
		"alone":                      {[]string{"train"}, false, false, 0},
		"beside an idle job":         {[]string{"train", "other"}, true, false, 0},
		"beside an unknown job":      {[]string{"train", "other"}, false, false, 5e8},
		"beside processes of no job": {[]string{"train"}, false, true, 5e8},
	} {
		t.Run(name, func(t *testing.T) {
			m := NewMeter()
			for i := range 2 {
				mc := machineWith(gib, 0, 0, tt.jobs...)
				mc.Jobs[0].Devices[0].Compute = &machine.Compute{Max: 50, Used: uint64(i) * 5e8}
				if tt.outside {
					mc.Devices = []machine.GPU{{Device: 3, UUID: train.Device}}
					mc.Outside = []machine.Outside{{Device: 3, Used: 1}}
				}
				m.Look(mc, monday.Add(time.Duration(i)*time.Second))
				if tt.known {
					mc.Jobs[1].Processes = []machine.Process{{Holdings: []machine.Holding{{Time: &machine.Time{About: true}}}}}
					m.Times(&machine.Machine{Devices: mc.Devices, Jobs: mc.Jobs[1:]}, time.Second, monday)
				}
			}
			got := m.Take().Sums[train]
			expect.True(t, got.Measured == 5e8 && got.Shared == tt.want, got)
		})
	}
	l := Line{}.with(Sums{Measured: 3600e9, Shared: 1800e9})
	expect.True(t, l.Hours() == "≤1.00 h" && l.Shared == 1800, l)
}
