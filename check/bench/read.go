package bench

import (
	"fmt"
	"time"
)

const writers = 8

// read measures readers: of a device's usage, and of what each process holds while
// 8 processes write.
func read(env Env) (Result, error) {
	var result Result
	err := withPair(largeLimit, func(p pair) error {
		for _, part := range []func(Env, pair) ([]Row, error){readUsage, measureClock, readBeside} {
			rows, err := part(env, p)
			if err != nil {
				return err
			}
			result.Rows = append(result.Rows, rows...)
		}
		return nil
	})
	if err != nil {
		return result, err
	}
	for _, load := range []struct {
		name         string
		microseconds int
	}{{"busy", 0}, {"1000/s", 1000}} {
		for _, lang := range languages {
			rows, err := snapshots(env, lang, load.name, load.microseconds)
			if err != nil {
				return result, err
			}
			result.Rows = append(result.Rows, rows...)
		}
	}
	result.Notes = []string{
		"One slot: its writer is a thread of the same process, which writes without a pause. A plain sequence lock has one copy: its reader waits for a writer in the middle, also one that is stopped; ours has two.",
		"A snapshot is the bytes by kind of 8 processes, each read consistently, while all 8 write. Reader and writers are of one language.",
		"Its times include the clock's own; spread: the least and the largest sample.",
	}
	return result, nil
}

func readUsage(env Env, p pair) ([]Row, error) {
	env.Say("usage of a device")
	load, rows, err := p.compare(env.pick(61, 3), "usage of a device", orderOf("used"), orderOf("load"))
	if err != nil {
		return nil, err
	}
	load.Name = "bare atomic load"
	rows[0] = rows[0].withTarget(rows[0].Ratio, 3, "≤ 3 ×")
	return append([]Row{load}, rows...), nil
}

// measureClock measures two readings of the clock, which are part of every timed read.
func measureClock(env Env, p pair) ([]Row, error) {
	t, err := p.reading(inC, "clock %d", env.pick(100_000, 1000))
	return []Row{t.row("the clock itself", p50)}, err
}

// readBeside measures a read of one slot while its writer writes without a pause: under a
// plain sequence lock, and under ours.
func readBeside(env Env, p pair) (rows []Row, err error) {
	env.Say("one slot, one busy writer")
	for _, of := range []struct {
		name, order string
		lang        language
	}{{"one slot, plain", "plainread", inC}, {"one slot, ours", "readbeside", inC}, {"one slot, ours", "readbeside", inGo}} {
		t, err := p.reading(of.lang, "%s %d", of.order, env.pause(time.Second))
		if err != nil {
			return nil, err
		}
		rows = append(rows, t.row(of.name, p50), t.row(of.name, p999), t.repeated("  read again"))
	}
	return rows, nil
}

// snapshots reads what 8 processes hold while they write, and counts how often a
// read had to be repeated.
func snapshots(env Env, lang language, name string, microseconds int) (rows []Row, err error) {
	env.Say(fmt.Sprintf("a snapshot of 8 %s writers in %s", name, lang))
	err = inRegion(func(path string) error {
		c, err := openCrew(lang, 1+writers, path, largeLimit) // the first reads
		if err != nil {
			return err
		}
		defer c.close()
		for i := 1; i <= writers; i++ {
			if _, err := c.order(i, "write %d", microseconds); err != nil {
				return err
			}
		}
		t, err := pair{lang: c}.reading(lang, "snapshots %d", env.pause(2*time.Second))
		if err != nil {
			return err
		}
		name := "snapshot, " + name
		again, best, inPieces := t.repeated("  read again"), t.count("  best effort", bestEffort), t.count("  torn", torn)
		if microseconds > 0 {
			rows = []Row{t.row(name, p50), again.judge(0.1, "< 0.1 %"), best.withTarget(best.Value, 0, "0")}
			return nil
		}
		rows = []Row{
			t.row(name, p50).judge(300, "< 300 ns"), t.row(name, p99), t.row(name, p999).judge(10_000, "< 10 µs"),
			again, best.withTarget(best.Value, 0, "0"), inPieces.withTarget(inPieces.Value, 0, "0"),
		}
		return nil
	})
	return rows, err
}

// reading is the answer to the orders that time single reads.
type reading struct {
	lang    language
	numbers []float64
}

// Indices of the numbers.
const (
	p50 = iota
	p99
	p999
	least
	largest
	samples
	reads // of one process, where a sample reads several
	retries
	bestEffort
	torn
)

func (p pair) reading(lang language, format string, args ...any) (reading, error) {
	numbers, err := p[lang].order(0, format, args...)
	return reading{lang, numbers}, err
}

// row returns a percentile, with the least and the largest sample as its spread.
func (t reading) row(name string, percentile int) Row {
	n := t.numbers
	name += [...]string{p50: ", p50", p99: ", p99", p999: ", p99.9"}[percentile]
	return Row{Name: name, Language: t.lang, Unit: Nanoseconds, Value: n[percentile], Low: n[least], High: n[largest], Samples: int(n[samples])}
}

func (t reading) count(name string, which int) Row {
	v := t.numbers[which]
	return Row{Name: name, Language: t.lang, Value: v, Low: v, High: v, Samples: int(t.numbers[samples])}
}

// repeated returns how many reads had to be repeated.
func (t reading) repeated(name string) Row {
	v := 100 * t.numbers[retries] / max(t.numbers[reads], 1)
	return Row{Name: name, Language: t.lang, Unit: Percent, Value: v, Low: v, High: v, Samples: int(t.numbers[reads])}
}
