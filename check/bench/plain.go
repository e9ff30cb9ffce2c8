package bench

import (
	"sync"
	"sync/atomic"
	"time"

	"ration/internal/abi"
	"ration/internal/region"
)

// The designs that ration comes from keep a process's usage under a plain sequence lock:
// one writer, four fields, one copy, and no ledger. It is measured beside ours, so that a
// reader sees what an exact limit costs and gains.

// plainUpdate measures a write of the four fields.
func plainUpdate(env Env, _ *region.Region, _ *region.Slot) ([]Row, error) {
	env.Say("a plain sequence lock")
	lock := new(region.PlainLock)
	bare, op, err := alternate(env.pick(61, 3), bareAdd, func() (float64, error) {
		from := time.Now()
		for i := range uint64(opsPerRound) {
			lock.Write(i)
		}
		return perOp(from, opsPerRound), nil
	})
	return []Row{op.row("a plain sequence lock's write, no limit", Nanoseconds).relativeTo(bare.row("", Nanoseconds)).throughput()}, err
}

// plainRead measures a read of one slot while its writer writes without a pause: under a
// plain sequence lock, and under ours.
func plainRead(env Env, r *region.Region) ([]Row, error) {
	env.Say("one slot, one busy writer")
	s, err := r.Claim("bench")
	if err != nil {
		return nil, err
	}
	lock := new(region.PlainLock)
	plain, plainTries := whileWriting(env, func(i uint64) error { lock.Write(i); return nil }, func() (int, error) {
		_, retries := lock.Read(abi.ReadTries)
		return retries, nil
	})
	var buf []region.Holding
	before, err := r.Counters()
	if err != nil {
		return nil, err
	}
	ours, _ := whileWriting(env, func(i uint64) error {
		if i%2 == 0 {
			return s.Charge(0, abi.Data, chargeBytes)
		}
		return s.Return(0, abi.Data, chargeBytes)
	}, func() (int, error) {
		var err error
		buf, err = r.Holdings(0, buf[:0])
		return 0, err
	})
	after, err := r.Counters()
	if err != nil {
		return nil, err
	}
	percent := func(name string, retries, reads float64) Row {
		v := 100 * retries / reads
		return Row{Name: name, Unit: Percent, Value: v, Low: v, High: v, Samples: int(reads)}
	}
	return []Row{
		plain.at(50, "one slot, a plain sequence lock"), plain.at(99.9, "one slot, a plain sequence lock"),
		percent("tried again, a plain sequence lock", plainTries, float64(len(plain))),
		ours.at(50, "one slot, ours"), ours.at(99.9, "one slot, ours"),
		percent("tried again, ours", float64(after.Retries-before.Retries), float64(after.Reads-before.Reads)),
	}, s.Leave()
}

// whileWriting times reads beside a thread that writes without a pause, and adds up their
// retries.
func whileWriting(env Env, write func(i uint64) error, read func() (int, error)) (times Samples, retries float64) {
	var stop atomic.Bool
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := uint64(0); !stop.Load() || i%2 == 1; i++ {
			if write(i) != nil {
				return
			}
		}
	})
	defer writer.Wait()
	defer stop.Store(true)
	times = make(Samples, 0, 4_000_000)
	for until := time.Now().Add(env.pause(time.Second)); len(times) < cap(times); {
		from := time.Now()
		n, err := read()
		to := time.Now()
		if err != nil || to.After(until) {
			break
		}
		times, retries = append(times, float64(to.Sub(from))), retries+float64(n)
	}
	return times, retries
}
