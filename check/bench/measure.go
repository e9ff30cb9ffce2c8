package bench

import (
	"fmt"
	"slices"
)

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

// judge sets the target of a row in C; a row in Go has none.
func (r Row) judge(most float64, target string) Row {
	if r.Language == inC {
		return r.withTarget(r.Value, most, target)
	}
	return r
}

// in sets the language of a row.
func (r Row) in(lang language) Row {
	r.Language = lang
	return r
}

// alternate measures functions in turn, each of which goes first as often as the others, so that
// other load on the machine affects all of them.
func alternate[T any](rounds int, measure ...func() (T, error)) ([][]T, error) {
	all := make([][]T, len(measure))
	for round := range rounds {
		for i := range measure {
			i = (round + i) % len(measure)
			v, err := measure[i]()
			if err != nil {
				return all, err
			}
			all[i] = append(all[i], v)
		}
	}
	return all, nil
}
