package bench

import (
	"fmt"
	"slices"
	"time"

	"ration/internal/abi"
	"ration/internal/region"
)

// largeLimit is the limit of regions in which nothing is refused, in bytes.
const largeLimit = 1 << 40

// Samples are the samples of one value.
type Samples []float64

// Percentile returns a percentile of sorted samples, by nearest rank.
func (s Samples) Percentile(p float64) float64 {
	if len(s) == 0 {
		return 0
	}
	rank := int(p / 100 * float64(len(s)))
	return s[min(rank, len(s)-1)]
}

// row returns the median, with the 10th and 90th percentile as its spread.
func (s Samples) row(name, unit string) Row {
	slices.Sort(s)
	return Row{Name: name, Unit: unit, Value: s.Percentile(50), Low: s.Percentile(10), High: s.Percentile(90), Samples: len(s)}
}

// at returns a percentile, with the least and the largest sample as its spread.
func (s Samples) at(p float64, name string) Row {
	slices.Sort(s)
	return Row{Name: fmt.Sprintf("%s, p%v", name, p), Unit: Nanoseconds, Value: s.Percentile(p),
		Low: s.Percentile(0), High: s.Percentile(100), Samples: len(s)}
}

// relativeTo sets the ratio of a row to the bare operation.
func (r Row) relativeTo(bare Row) Row {
	r.Atomic = bare.Value
	if bare.Value > 0 {
		r.Ratio = r.Value / bare.Value
	}
	return r
}

// throughput sets the operations per second of a row of times.
func (r Row) throughput() Row {
	r.PerSecond = 1e9 / r.Value
	return r
}

// alternate measures two functions in turn, each first in half of the rounds, so
// that other load on the machine affects both.
func alternate(rounds int, bare, op func() (float64, error)) (b, o Samples, err error) {
	for round := range rounds {
		order := [2]func() error{
			func() error { return measure(bare, &b) },
			func() error { return measure(op, &o) },
		}
		if round%2 == 1 {
			order[0], order[1] = order[1], order[0]
		}
		for _, do := range order {
			if err := do(); err != nil {
				return b, o, err
			}
		}
	}
	return b, o, nil
}

func measure(f func() (float64, error), into *Samples) error {
	v, err := f()
	*into = append(*into, v)
	return err
}

// perOp returns the nanoseconds since from for each of n operations.
func perOp(from time.Time, n int) float64 { return float64(time.Since(from)) / float64(n) }

// create makes a region with a limit on every device.
func create(path string, limit uint64) (*region.Region, error) {
	var opt region.Options
	for d := range opt.Limits.Memory {
		opt.Limits.Memory[d] = abi.MakeLimit(limit)
	}
	return region.Open(path, opt)
}

// join attaches to an existing region and claims a slot.
func join(path, name string) (*region.Region, *region.Slot, error) {
	r, err := region.Open(path, region.Options{NoCreate: true})
	if err != nil {
		return nil, nil, err
	}
	s, err := r.Claim(name)
	return r, s, err
}
