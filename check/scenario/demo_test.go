package scenario

import (
	"testing"

	"ration/check/expect"
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
			expect.True(t, least%abi.Unit == 0 && most%abi.Unit == 0 && least < most && least > r.Context,
				"limit", limit, name, "holds", least, "to", most)
			low, high = low+least, high+most
		}
		expect.True(t, high+r.Context <= limit, "limit", limit, "workers and a guest may want", high+r.Context)
		expect.True(t, low+r.part(400) > limit, "limit", limit, "greedy may get what it asks for")
		expect.True(t, low+r.part(300) > limit, "limit", limit, "heir may do without the dead")
		_, _, most := r.plan(hog)
		expect.True(t, high-most+r.part(300)+r.Context <= limit, "limit", limit, "heir may be refused")
	}
}
