package bench

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"ration/internal/abi"
	"ration/internal/region"
)

// chargeBytes is the size of one charge in the benchmarks.
const chargeBytes = 4096

// opsPerRound is how many operations are timed at once: about a millisecond, so
// that a preemption disturbs one of many rounds and not the median.
const opsPerRound = 20_000

// update measures one charge.
func update(env Env) (Result, error) {
	var result Result
	err := inRegion(func(path string) error {
		r, err := create(path, largeLimit)
		if err != nil {
			return err
		}
		defer r.Close()
		s, err := r.Claim("bench")
		if err != nil {
			return err
		}
		for _, part := range []func(Env, *region.Region, *region.Slot) ([]Row, error){alone, plainUpdate, neighbours, threads, manySlots, manyCharges} {
			rows, err := part(env, r, s)
			if err != nil {
				return err
			}
			result.Rows = append(result.Rows, rows...)
		}
		return s.Leave()
	})
	result.Notes = []string{
		"A plain sequence lock is the designs' own way to keep a process's usage: one writer, four fields, one copy. It decides nothing.",
		"Only the charges are timed; they are returned all at once afterwards.",
		"Spread: 10th to 90th percentile over rounds. Threads share one slot; their time is wall time divided by the charges of all threads.",
	}
	return result, err
}

func bareAdd() (float64, error) {
	var x uint64
	from := time.Now()
	for range opsPerRound {
		atomic.AddUint64(&x, 1)
	}
	return perOp(from, opsPerRound), nil
}

// charges returns the nanoseconds for each of n charges.
func charges(s *region.Slot, n int) (float64, error) {
	from := time.Now()
	for range n {
		if err := s.Charge(0, abi.Data, chargeBytes); err != nil {
			return 0, err
		}
	}
	took := perOp(from, n)
	return took, s.Return(0, abi.Data, uint64(n)*chargeBytes)
}

func alone(env Env, _ *region.Region, s *region.Slot) ([]Row, error) {
	env.Say("a charge alone")
	bare, op, err := alternate(env.pick(61, 3), bareAdd, func() (float64, error) { return charges(s, opsPerRound) })
	if err != nil {
		return nil, err
	}
	_, back, err := alternate(env.pick(61, 3), bareAdd, func() (float64, error) {
		if err := s.Charge(0, abi.Data, opsPerRound*chargeBytes); err != nil {
			return 0, err
		}
		from := time.Now()
		for range opsPerRound {
			if err := s.Return(0, abi.Data, chargeBytes); err != nil {
				return 0, err
			}
		}
		return perOp(from, opsPerRound), nil
	})
	add := bare.row("bare atomic add", Nanoseconds)
	charge := op.row("charge", Nanoseconds).relativeTo(add).throughput()
	return []Row{
		add.throughput(),
		charge.withTarget(charge.Ratio, 12, "≤ 12 ×"),
		back.row("return", Nanoseconds).relativeTo(add).throughput(),
	}, err
}

// neighbours measures a charge that finds another slot's change in the ledger word,
// and has to note that change first.
func neighbours(env Env, r *region.Region, s *region.Slot) ([]Row, error) {
	env.Say("two slots taking turns")
	other, err := r.Claim("bench neighbour")
	if err != nil {
		return nil, err
	}
	bare, op, err := alternate(env.pick(61, 3), bareAdd, func() (float64, error) {
		from := time.Now()
		for range opsPerRound / 2 {
			if err := errors.Join(s.Charge(0, abi.Data, chargeBytes), other.Charge(0, abi.Data, chargeBytes)); err != nil {
				return 0, err
			}
		}
		took := perOp(from, opsPerRound)
		return took, errors.Join(s.Return(0, abi.Data, opsPerRound/2*chargeBytes), other.Return(0, abi.Data, opsPerRound/2*chargeBytes))
	})
	if err != nil {
		return nil, err
	}
	add := bare.row("bare atomic add", Nanoseconds)
	return []Row{op.row("charge after a neighbour's", Nanoseconds).relativeTo(add).throughput()}, other.Leave()
}

// threads measures several threads of one process in one slot, compared with as
// many that add to one word.
func threads(env Env, _ *region.Region, s *region.Slot) ([]Row, error) {
	var rows []Row
	for _, n := range []int{2, 4, 8} {
		env.Say(fmt.Sprintf("%d threads in one slot", n))
		before := runtime.GOMAXPROCS(max(n, runtime.NumCPU()))
		var word uint64
		bare, op, err := alternate(env.pick(21, 2), func() (float64, error) {
			return together(n, func() error {
				for range opsPerRound / n {
					atomic.AddUint64(&word, 1)
				}
				return nil
			})
		}, func() (float64, error) {
			took, err := together(n, func() error {
				for range opsPerRound / n {
					if err := s.Charge(0, abi.Data, chargeBytes); err != nil {
						return err
					}
				}
				return nil
			})
			return took, errors.Join(err, s.Return(0, abi.Data, uint64(opsPerRound/n*n)*chargeBytes))
		})
		runtime.GOMAXPROCS(before)
		if err != nil {
			return nil, err
		}
		name := fmt.Sprintf("charge by %d threads", n)
		rows = append(rows, op.row(name, Nanoseconds).relativeTo(bare.row("", Nanoseconds)).throughput())
	}
	return rows, nil
}

// together runs f in n threads at once, and returns the nanoseconds for each
// operation of a round that they share.
func together(n int, f func() error) (float64, error) {
	var wg sync.WaitGroup
	errs, gate := make([]error, n), make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-gate
			errs[i] = f()
		})
	}
	from := time.Now()
	close(gate)
	wg.Wait()
	return perOp(from, opsPerRound), errors.Join(errs...)
}

// manySlots measures a charge with 8 and with 1000 slots in use.
func manySlots(env Env, r *region.Region, s *region.Slot) ([]Row, error) {
	var slots []*region.Slot
	grow := func(to int) error {
		env.Say(fmt.Sprintf("%d slots in use", to))
		for len(slots)+1 < to {
			other, err := r.Claim("bench other")
			if err != nil {
				return err
			}
			if slots = append(slots, other); other.Charge(0, abi.Data, chargeBytes) != nil {
				return fmt.Errorf("filling slot %d", other.Index())
			}
		}
		return nil
	}
	var rows []Row
	for _, n := range []int{8, 1000} {
		if err := grow(n); err != nil {
			return nil, err
		}
		bare, op, err := alternate(env.pick(41, 3), bareAdd, func() (float64, error) { return charges(s, opsPerRound) })
		if err != nil {
			return nil, err
		}
		row := op.row(fmt.Sprintf("charge, %d slots in use", n), Nanoseconds)
		rows = append(rows, row.relativeTo(bare.row("", Nanoseconds)).throughput())
	}
	rows[1] = rows[1].withTarget(rows[1].Value, 1.5*rows[0].Value, "≤ 1.5 × 8")
	var errs []error
	for _, other := range slots {
		errs = append(errs, other.Leave())
	}
	return rows, errors.Join(errs...)
}

// manyCharges measures a charge after 10 and after 100 000 that were not returned.
func manyCharges(env Env, _ *region.Region, s *region.Slot) ([]Row, error) {
	var rows []Row
	held := 0
	for _, n := range []int{10, 100_000} {
		env.Say(fmt.Sprintf("%d live allocations", n))
		for ; held < n; held++ {
			if err := s.Charge(0, abi.Data, chargeBytes); err != nil {
				return nil, err
			}
		}
		bare, op, err := alternate(env.pick(41, 3), bareAdd, func() (float64, error) { return charges(s, opsPerRound) })
		if err != nil {
			return nil, err
		}
		row := op.row(fmt.Sprintf("charge, %d live", n), Nanoseconds)
		rows = append(rows, row.relativeTo(bare.row("", Nanoseconds)).throughput())
	}
	rows[1] = rows[1].withTarget(rows[1].Value, 1.5*rows[0].Value, "≤ 1.5 × 10")
	return rows, s.Return(0, abi.Data, uint64(held)*chargeBytes)
}
