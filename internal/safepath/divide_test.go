package safepath

import (
	"slices"
	"testing"
)

func TestDivide(t *testing.T) {
	for _, c := range []struct {
		total       int
		wants, gets []int
	}{
		{10, nil, []int{}},
		{10, []int{3, 7}, []int{3, 7}},
		{10, []int{2000, 3}, []int{7, 3}},
		{10, []int{2000, 2000, 1}, []int{5, 4, 1}},
		{2, []int{5, 5, 5}, []int{1, 1, 0}},
		{0, []int{1}, []int{0}},
	} {
		gets := Divide(c.total, c.wants)
		slices.Sort(gets)
		slices.Sort(c.gets)
		if !slices.Equal(gets, c.gets) {
			t.Errorf("%d among %v: got %v", c.total, c.wants, gets)
		}
	}
}
