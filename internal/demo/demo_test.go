package demo

import (
	"testing"

	"ration/internal/abi"
)

// What the story tells must follow from the parts, whatever the budget: workers
// are never refused, greedy always is, and heir needs what hog held.
func TestShares(t *testing.T) {
	for _, limit := range []uint64{uint64(MinLimit), 10 << 30, 10<<30 + 512, uint64(Device)} {
		s := &show{Report: Report{Limit: limit, Context: limit / 160 / abi.Unit * abi.Unit}}
		var low, high uint64
		for i := range workers {
			p := s.part(i)
			if p.Low%abi.Unit != 0 || p.High%abi.Unit != 0 || p.Low >= p.High || p.Low <= p.Context {
				t.Errorf("limit %d: part %+v", limit, p)
			}
			low, high = low+p.Low, high+p.High
		}
		if high+s.Context > limit {
			t.Errorf("limit %d: workers and a guest may want %d", limit, high+s.Context)
		}
		if low+s.share(400) <= limit {
			t.Errorf("limit %d: greedy may get what it asks for", limit)
		}
		if low+s.share(300) <= limit {
			t.Errorf("limit %d: heir may do without the dead", limit)
		}
		if high-s.part(hog).High+s.share(300)+s.Context > limit {
			t.Errorf("limit %d: heir may be refused", limit)
		}
	}
}
