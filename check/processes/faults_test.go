package processes

import (
	"fmt"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/abi"
)

// faultRun is one run of a scenario.
type faultRun struct {
	t       *testing.T
	mix     impls
	path    string
	workers map[string]*worker // by their names in the scenario
}

// eachFault runs the scenario of every failpoint once for every pass, with the victim
// dying or stopping there. A failpoint that no scenario reaches fails the test.
func eachFault(t *testing.T, mode string, test func(r *faultRun, s scenario, n int)) {
	walkMix(t, func(t *testing.T, mix impls) {
		for p := abi.FailpointNone + 1; p < abi.HostPIDTaken; p++ { // the others are not the region's
			passes := scenarioFor(p, "").passes
			expect.True(t, passes != 0, "no scenario leads to", p)
			for n := 1; n <= passes; n++ {
				t.Run(fmt.Sprintf("%v:%d", p, n), func(t *testing.T) {
					path := newPath(t)
					r := &faultRun{t: t, mix: mix, path: path, workers: map[string]*worker{}}
					r.workers["v"] = faulty(t, mix, 0, p, n, mode)
					r.workers["a"] = start(t, mix, 1)
					s := scenarioFor(p, path)
					if !s.first {
						r.enter()
					}
					expect.Must(t, r.run(s), p, "was not passed", n, "times")
					test(r, s, n)
				})
			}
		}
	})
}

// enter attaches the survivor to the region.
func (r *faultRun) enter() {
	r.t.Helper()
	r.workers["a"].join(r.path, "survivor", scenarioLimit, scenarioLimit, scenarioLimit)
}

// run carries out the steps until the victim has died or stopped. It returns false if
// that did not happen.
func (r *faultRun) run(s scenario) bool {
	r.t.Helper()
	for _, step := range s.steps {
		w := r.workers[step.worker]
		switch {
		case step.worker == "v":
			if _, fault := w.untilFault("%s", step.order); fault {
				return true
			} // its answer may be a refusal
		case step.order == "kill":
			w.Kill()
		default:
			if w == nil {
				w = start(r.t, r.mix, len(r.workers))
				r.workers[step.worker] = w
			}
			got := w.Ask("%s", step.order)
			expect.Must(r.t, got.Verdict() != "error", step.order, got)
		}
	}
	return false
}

// A process that is killed at any failpoint takes nothing from the others: the next
// process gets all its bytes, and all slots can be used. When it is found dead, its
// last change is still the device's last one, or, every other time, others followed.
func TestKilledAtEveryPoint(t *testing.T) {
	eachFault(t, "kill", func(r *faultRun, s scenario, n int) { r.checkKilled(s, n%2 == 0) })
}

// checkKilled lets the survivor find the victim dead, and take what it held. followed
// makes other changes first.
func (r *faultRun) checkKilled(s scenario, followed bool) {
	r.t.Helper()
	r.workers["v"].Kill()
	a := r.workers["a"]
	if s.first {
		r.enter()
	}
	a.OK("leave")
	a.OK("claim survivor")
	for d := range scenarioDevices {
		if followed {
			a.OK("charge %d data 1", d)
			a.OK("return %d data 1", d)
		}
	}
	for d := range scenarioDevices {
		a.OK("charge %d data %d", d, scenarioLimit)
		expect.Equal(r.t, a.OK("used %d", d).Int("bytes"), scenarioLimit, "device", d, "bytes granted, but the survivor holds")
	}
	a.OK("reap")
	balanced(r.t, r.path)
	r.t.Logf("the longest operation took %v", time.Duration(a.OK("stop").Int("longest")))
	a.Ask("claims %d", abi.FenceSlot-1).want("ok", "claiming every slot but its own")
	finish(r.t, r.path, a)
}

// A process that is stopped at any failpoint keeps what it holds and blocks no other
// process. Continued, it finishes its operation, and the accounts balance.
func TestStoppedAtEveryPoint(t *testing.T) {
	eachFault(t, "stop", func(r *faultRun, s scenario, _ int) {
		a := r.workers["a"]
		if s.first {
			r.enter()
		}
		a.OK("leave")
		a.OK("claim survivor")
		for d := range scenarioDevices {
			a.OK("charge %d data %d", d, scenarioLimit-s.holds)
		}
		other := join(r.t, r.mix, 2, r.path)
		other.Ask("charge 0 data %d", scenarioLimit).want("refused", "a charge of the whole limit, most of it held")
		other.OK("reap")
		took := time.Duration(max(a.OK("stop").Int("longest"), other.OK("stop").Int("longest")))
		r.t.Logf("the longest operation took %v", took)

		v := r.workers["v"]
		v.Continue()
		got := v.Answer()
		expect.True(r.t, got.Verdict() != "error", "continued", got)
		balanced(r.t, r.path)
		finish(r.t, r.path, v, a, other)
	})
}

// Racing initialisers that die one after the other, each at another failpoint, leave a
// region that the last one completes.
func TestDyingInitialisers(t *testing.T) {
	eachMix(t, func(t *testing.T, mix impls) {
		for range rounds(5) {
			path := newPath(t)
			gate := newGate(t)
			var victims []*worker
			for p := abi.InitOpened; p <= abi.InitDone; p++ {
				w := faulty(t, mix, int(p), p, 1, "kill", at(gate))
				w.Tell("gate")
				w.Tell("open %s 0=%d", path, mib)
				victims = append(victims, w)
			}
			survivors := make([]*worker, 4)
			for i := range survivors {
				survivors[i] = start(t, mix, i, at(gate))
				survivors[i].Tell("gate")
			}
			gate.Open()
			for _, w := range survivors {
				w.answers(1)
				w.join(path, "survivor", mib)
			}
			for _, w := range victims {
				w.Kill() // those that came too late for their failpoint are still alive
			}
			survivors[0].OK("charge 0 data %d", mib)
			finish(t, path, survivors...)
		}
	})
}
