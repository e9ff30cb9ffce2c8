package processes

import (
	"fmt"
	"os"
	"testing"
)

// race starts n workers that open path at one moment, worker i with limit(i).
func race(t *testing.T, mix impls, n int, path string, limit func(int) int) ([]*worker, []answer) {
	t.Helper()
	gate := newGate(t)
	workers := make([]*worker, n)
	for i := range workers {
		workers[i] = start(t, mix, i, at(gate))
		workers[i].Tell("gate")
		workers[i].Tell("open %s 0=%d", path, limit(i))
		workers[i].Tell("claim worker-%d", i)
	}
	gate.Open()
	opened := make([]answer, n)
	for i, w := range workers {
		opened[i] = w.answers(2) // to gate and open
	}
	return workers, opened
}

// Of many processes that start at once exactly one initialises the region, and each
// gets a slot of its own.
func TestRacingInitialisers(t *testing.T) {
	eachMix(t, func(t *testing.T, mix impls) {
		for _, n := range []int{8, 18, 32} {
			t.Run(fmt.Sprint(n), func(t *testing.T) {
				for range rounds(4) {
					path := newPath(t)
					workers, opened := race(t, mix, n, path, func(int) int { return mib })
					roles, slots := map[string]int{}, map[int]bool{}
					for i, w := range workers {
						roles[opened[i].Text("role")]++
						slots[w.Answer().Int("slot")] = true
					}
					if roles["initialiser"] != 1 || len(slots) != n {
						t.Errorf("%d processes: roles %v, %d slots", n, roles, len(slots))
					}
					t.Logf("%d processes: %v", n, roles)
					finish(t, path, workers...)
				}
			})
		}
	})
}

// Of processes with different limits, the limit of one is used by all, and the others
// are told that theirs differs.
func TestRacingLimits(t *testing.T) {
	eachMix(t, func(t *testing.T, mix impls) {
		const n = 8
		path := newPath(t)
		workers, opened := race(t, mix, n, path, func(i int) int { return (i + 1) * mib })
		limit := 0
		for i, w := range workers {
			w.answers(1) // to claim
			if i == 0 {
				limit = w.OK("limit 0").Int("bytes")
			}
			if got := w.OK("limit 0").Int("bytes"); got != limit {
				t.Errorf("worker %d uses a limit of %d, worker 0 of %d", i, got, limit)
			}
			differs, want := opened[i].Text("differ"), "0"
			if limit == (i+1)*mib {
				want = ""
			}
			if differs != want {
				t.Errorf("worker %d has the limit %d where the region has %d: told that %q differ", i, (i+1)*mib, limit, differs)
			}
		}
	})
}

// Processes that start and exit fast leave nothing behind: no stale slot, no byte, and
// nothing to reap. The region is new every tenth round.
func TestStartAndExitFast(t *testing.T) {
	eachMix(t, func(t *testing.T, mix impls) {
		const n = 16
		path := newPath(t)
		for round := range rounds(50) {
			if round%10 == 0 {
				must(t, os.RemoveAll(path))
			}
			workers := make([]*worker, n)
			for i := range workers {
				workers[i] = start(t, mix, i)
				workers[i].Tell("open %s 0=%d", path, mib)
				workers[i].Tell("claim fast-%d", i)
				workers[i].Tell("charge 0 data %d", mib/n)
			}
			quit(workers...) // which fails for any answer but ok
			if round%10 == 9 {
				checkEmpty(t, path)
			}
		}
	})
}
