package usage

import (
	"fmt"
	"math"
	"testing"
	"time"

	"ration/check/expect"
	"ration/machine"
)

// turnsOf is a job as the library tells of it after a second: which part of it was busy, and in its own turn.
type turnsOf struct {
	busy, inTurn float64
	slices       []uint64 // of its contexts that have work, in microseconds; 0 is the driver's own
	state        string
	unmeasured   bool
}

// Jobs that have work at the same time take turns, by their slices. The turns of others are not in an account.
func TestMeterTurns(t *testing.T) {
	busy := func(slices ...uint64) turnsOf { return turnsOf{busy: 1, slices: slices} }
	for name, tt := range map[string]struct {
		jobs   []turnsOf
		want   []float64 // per cent
		bounds []bool    // it is only an upper bound
	}{
		"four shares":           {[]turnsOf{busy(2000), busy(4000), busy(6000), busy(8000)}, []float64{9.46, 19.11, 28.76, 38.42}, []bool{false, false, false, false}},
		"the driver's slices":   {[]turnsOf{busy(0), busy(0)}, []float64{45.06, 45.06}, []bool{false, false}},
		"several contexts":      {[]turnsOf{busy(2500, 2500), busy(5000)}, []float64{46.68, 47.06}, []bool{false, false}},
		"one works half of it":  {[]turnsOf{busy(0), {busy: 0.5, slices: []uint64{0}}}, []float64{72.53, 22.53}, []bool{false, false}},
		"short turns":           {[]turnsOf{busy(0), {busy: 0.05, inTurn: 0.05, slices: []uint64{0}}}, []float64{97.25, 5}, []bool{true, false}},
		"each at its own time":  {[]turnsOf{{busy: 0.5, slices: []uint64{0}}, {busy: 0.5, slices: []uint64{0}}}, []float64{50, 50}, []bool{true, true}},
		"two that come and go":  {[]turnsOf{busy(0), {busy: 0.5, slices: []uint64{0}}, {busy: 0.5, slices: []uint64{0}}}, []float64{65.02, 22.53, 22.53}, []bool{true, true, true}},
		"a slice that was lost": {[]turnsOf{busy(2000), {busy: 1, slices: []uint64{8000}, state: machine.NotEnforced}}, []float64{100, 100}, []bool{true, true}},
		"beside one unmeasured": {[]turnsOf{busy(2000), busy(8000), {slices: []uint64{0}, unmeasured: true}}, []float64{100, 100}, []bool{true, true}},
	} {
		t.Run(name, func(t *testing.T) {
			m := NewMeter()
			var names []string
			for i := range tt.jobs {
				names = append(names, fmt.Sprint(i))
			}
			for second := range 11 {
				mc := machineWith(gib, 0, 0, names...)
				for i, j := range tt.jobs {
					if !j.unmeasured {
						mc.Jobs[i].Devices[0].Compute = &machine.Compute{Max: 100, Used: uint64(float64(second) * j.busy * 1e9), InTurn: uint64(float64(second) * j.inTurn * 1e9)}
					}
					for _, slice := range j.slices {
						mc.Jobs[i].Processes = append(mc.Jobs[i].Processes, machine.Process{Holdings: []machine.Holding{{Compute: &machine.ProcessCompute{Slice: slice, Working: 1, State: j.state}}}})
					}
				}
				m.Look(mc, monday.Add(time.Duration(second)*time.Second))
			}
			sums := m.Take().Sums
			for i, want := range tt.want {
				s := train
				s.Job = names[i]
				got := float64(sums[s].Measured) / 1e8
				expect.True(t, math.Abs(got-want) < 0.01, "job", i, "has", got, "not", want)
				expect.Equal(t, sums[s].Shared > 0, tt.bounds[i], "job", i)
			}
		})
	}
}
