package demo

import (
	"testing"

	"ration/internal/abi"
)

// With every limit, workers are never refused, greedy always is, and heir needs
// what hog held.
func TestPlan(t *testing.T) {
	for _, limit := range []uint64{uint64(MinLimit), 10 << 30, 10<<30 + 512, uint64(Device)} {
		r := &run{Report: Report{Limit: limit, Context: limit / 160 / abi.Unit * abi.Unit}}
		var low, high uint64
		for i := range workers {
			p := r.plan(i)
			if p.low%abi.Unit != 0 || p.high%abi.Unit != 0 || p.low >= p.high || p.low <= r.Context {
				t.Errorf("limit %d: plan %+v", limit, p)
			}
			low, high = low+p.low, high+p.high
		}
		if high+r.Context > limit {
			t.Errorf("limit %d: workers and a guest may want %d", limit, high+r.Context)
		}
		if low+r.part(400) <= limit {
			t.Errorf("limit %d: greedy may get what it asks for", limit)
		}
		if low+r.part(300) <= limit {
			t.Errorf("limit %d: heir may do without the dead", limit)
		}
		if high-r.plan(hog).high+r.part(300)+r.Context > limit {
			t.Errorf("limit %d: heir may be refused", limit)
		}
	}
}
