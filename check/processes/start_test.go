package processes

import (
	"fmt"
	"os"
	"testing"

	"ration/check/expect"
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
	walkMix(t, func(t *testing.T, mix impls) {
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
					expect.True(t, roles["initialiser"] == 1 && len(slots) == n, n, "processes: roles", roles, len(slots), "slots")
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
			expect.Equal(t, w.OK("limit 0").Int("bytes"), limit, "worker", i, "has another limit than worker 0")
			differs, want := opened[i].Text("differ"), "0"
			if limit == (i+1)*mib {
				want = ""
			}
			expect.Equal(t, differs, want, "worker", i, "has the limit", (i+1)*mib, "where the region has", limit, "limits that differ")
		}
	})
}

// Processes that start and exit fast leave nothing behind: no stale slot, no byte, and
// nothing to reap. The region is new every tenth round.
func TestStartAndExitFast(t *testing.T) {
	walkMix(t, func(t *testing.T, mix impls) {
		const n = 16
		path := newPath(t)
		for round := range rounds(50) {
			if round%10 == 0 {
				expect.OK(t, os.RemoveAll(path))
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
