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

// piece is what the benchmarks charge.
const piece = 4096

// block is how many operations are timed at once: about a millisecond, so that a
// preemption spoils one of many rounds and not the median.
const block = 20_000

// update measures one charge.
func update(env Env) (Result, error) {
	var result Result
	err := inRegion(func(path string) error {
		r, err := create(path, roomy)
		if err != nil {
			return err
		}
		defer r.Close()
		s, err := r.Claim("bench")
		if err != nil {
			return err
		}
		for _, part := range []func(Env, *region.Region, *region.Slot) ([]Row, error){alone, neighbours, threads, crowd, allocations} {
			rows, err := part(env, r, s)
			if err != nil {
				return err
			}
			result.Rows = append(result.Rows, rows...)
		}
		return s.Leave()
	})
	result.Notes = []string{
		"A charge alone is timed; what it took is returned in one piece outside the clock.",
		"Spread: 10th to 90th percentile over rounds. Threads share one slot; their time is that on the wall, by charges made together.",
	}
	return result, err
}

func bareAdd() (float64, error) {
	var x uint64
	from := time.Now()
	for range block {
		atomic.AddUint64(&x, 1)
	}
	return perOp(from, block), nil
}

// charges times n charges.
func charges(s *region.Slot, n int) (float64, error) {
	from := time.Now()
	for range n {
		if err := s.Charge(0, abi.Data, piece); err != nil {
			return 0, err
		}
	}
	took := perOp(from, n)
	return took, s.Return(0, abi.Data, uint64(n)*piece)
}

func alone(env Env, _ *region.Region, s *region.Slot) ([]Row, error) {
	env.Say("a charge alone")
	bare, op, err := alternate(env.pick(61, 3), bareAdd, func() (float64, error) { return charges(s, block) })
	if err != nil {
		return nil, err
	}
	_, back, err := alternate(env.pick(61, 3), bareAdd, func() (float64, error) {
		if err := s.Charge(0, abi.Data, block*piece); err != nil {
			return 0, err
		}
		from := time.Now()
		for range block {
			if err := s.Return(0, abi.Data, piece); err != nil {
				return 0, err
			}
		}
		return perOp(from, block), nil
	})
	add := bare.row("bare atomic add", Nanoseconds)
	charge := op.row("charge", Nanoseconds).beside(add).throughput()
	return []Row{
		add.throughput(),
		charge.within(charge.Ratio, 12, "≤ 12 ×"),
		back.row("return", Nanoseconds).beside(add).throughput(),
	}, err
}

// neighbours measures a charge that finds another slot's change in the word, and
// has to write it down first.
func neighbours(env Env, r *region.Region, s *region.Slot) ([]Row, error) {
	env.Say("two slots taking turns")
	other, err := r.Claim("bench neighbour")
	if err != nil {
		return nil, err
	}
	bare, op, err := alternate(env.pick(61, 3), bareAdd, func() (float64, error) {
		from := time.Now()
		for range block / 2 {
			if err := errors.Join(s.Charge(0, abi.Data, piece), other.Charge(0, abi.Data, piece)); err != nil {
				return 0, err
			}
		}
		took := perOp(from, block)
		return took, errors.Join(s.Return(0, abi.Data, block/2*piece), other.Return(0, abi.Data, block/2*piece))
	})
	if err != nil {
		return nil, err
	}
	add := bare.row("bare atomic add", Nanoseconds)
	return []Row{op.row("charge after a neighbour's", Nanoseconds).beside(add).throughput()}, other.Leave()
}

// threads measures several threads of one process in one slot, against as many
// that add to one word.
func threads(env Env, _ *region.Region, s *region.Slot) ([]Row, error) {
	var rows []Row
	for _, n := range []int{2, 4, 8} {
		env.Say(fmt.Sprintf("%d threads in one slot", n))
		before := runtime.GOMAXPROCS(max(n, runtime.NumCPU()))
		var word uint64
		bare, op, err := alternate(env.pick(21, 2), func() (float64, error) {
			return together(n, func() error {
				for range block / n {
					atomic.AddUint64(&word, 1)
				}
				return nil
			})
		}, func() (float64, error) {
			took, err := together(n, func() error {
				for range block / n {
					if err := s.Charge(0, abi.Data, piece); err != nil {
						return err
					}
				}
				return nil
			})
			return took, errors.Join(err, s.Return(0, abi.Data, uint64(block/n*n)*piece))
		})
		runtime.GOMAXPROCS(before)
		if err != nil {
			return nil, err
		}
		name := fmt.Sprintf("charge by %d threads", n)
		rows = append(rows, op.row(name, Nanoseconds).beside(bare.row("", Nanoseconds)).throughput())
	}
	return rows, nil
}

// together runs f in n threads at once, and returns the time for each operation
// of a block that they share.
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
	return perOp(from, block), errors.Join(errs...)
}

// crowd measures a charge with 8 and with 1000 slots in use.
func crowd(env Env, r *region.Region, s *region.Slot) ([]Row, error) {
	var slots []*region.Slot
	grow := func(to int) error {
		env.Say(fmt.Sprintf("%d slots in use", to))
		for len(slots)+1 < to {
			other, err := r.Claim("bench crowd")
			if err != nil {
				return err
			}
			if slots = append(slots, other); other.Charge(0, abi.Data, piece) != nil {
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
		bare, op, err := alternate(env.pick(41, 3), bareAdd, func() (float64, error) { return charges(s, block) })
		if err != nil {
			return nil, err
		}
		row := op.row(fmt.Sprintf("charge, %d slots in use", n), Nanoseconds)
		rows = append(rows, row.beside(bare.row("", Nanoseconds)).throughput())
	}
	rows[1] = rows[1].within(rows[1].Value, 1.5*rows[0].Value, "≤ 1.5 × 8")
	var errs []error
	for _, other := range slots {
		errs = append(errs, other.Leave())
	}
	return rows, errors.Join(errs...)
}

// allocations measures a charge with 10 and with 100 000 live ones before it.
func allocations(env Env, _ *region.Region, s *region.Slot) ([]Row, error) {
	var rows []Row
	held := 0
	for _, n := range []int{10, 100_000} {
		env.Say(fmt.Sprintf("%d live allocations", n))
		for ; held < n; held++ {
			if err := s.Charge(0, abi.Data, piece); err != nil {
				return nil, err
			}
		}
		bare, op, err := alternate(env.pick(41, 3), bareAdd, func() (float64, error) { return charges(s, block) })
		if err != nil {
			return nil, err
		}
		row := op.row(fmt.Sprintf("charge, %d live", n), Nanoseconds)
		rows = append(rows, row.beside(bare.row("", Nanoseconds)).throughput())
	}
	rows[1] = rows[1].within(rows[1].Value, 1.5*rows[0].Value, "≤ 1.5 × 10")
	return rows, s.Return(0, abi.Data, uint64(held)*piece)
}
