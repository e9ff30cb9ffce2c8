package safepath

import (
	"slices"
	"testing"

	"ration/check/expect"
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
		expect.True(t, slices.Equal(gets, c.gets), c.total, "among", c.wants, gets)
	}
}
