package scenario

import (
	"testing"

	"ration/internal/abi"
)

// With every limit, workers are never refused, greedy always is, and heir needs
// what hog held.
func TestPlan(t *testing.T) {
	for _, limit := range []uint64{uint64(DemoMinLimit), 10 << 30, 10<<30 + 512, uint64(DemoDevice)} {
		r := demoReport(limit)
		var low, high uint64
		for i := range workers {
			name, least, most := r.plan(i)
			if least%abi.Unit != 0 || most%abi.Unit != 0 || least >= most || least <= r.Context {
				t.Errorf("limit %d: %s holds %d to %d", limit, name, least, most)
			}
			low, high = low+least, high+most
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
		if _, _, most := r.plan(hog); high-most+r.part(300)+r.Context > limit {
			t.Errorf("limit %d: heir may be refused", limit)
		}
	}
}
