package test

import (
	"fmt"
	"testing"
	"time"

	"ration/internal/abi"
	"ration/test/harness"
)

// churning starts n workers that charge and return without pause, every third
// with several threads.
func churning(t *testing.T, crew harness.Crew, n int, path string, most int) []*harness.Worker {
	t.Helper()
	workers := make([]*harness.Worker, n)
	for i := range workers {
		workers[i] = join(t, crew, i, path)
		workers[i].OK("%schurn 0 %d %d", threads(i), i, most)
	}
	return workers
}

func threads(i int) string {
	if i%3 == 2 {
		return "threads 4 "
	}
	return ""
}

// While 8 processes charge and return without pause nobody ever sees the limit
// passed, and when they are done nothing is left.
func TestLimitHolds(t *testing.T) {
	harness.Crews(t, func(t *testing.T, crew harness.Crew) {
		const limit = 2 * mib
		path := newPath(t)
		setter := join(t, crew, 0, path, limit)
		observer := harness.Observe(t, path, 1, limit)
		workers := churning(t, crew, 8, path, limit/8)

		total := 0
		for deadline := time.Now().Add(time.Duration(rounds(2)) * time.Second); time.Now().Before(deadline); {
			// What the setter asks for meanwhile is granted or refused, never lost.
			if setter.Ask("charge 0 data %d", limit/2).Verdict() == "ok" {
				setter.OK("return 0 data %d", limit/2)
			}
		}
		refused, longest := 0, 0
		for _, w := range workers {
			a := w.OK("stop")
			total, refused, longest = total+a.Int("ops"), refused+a.Int("refused"), max(longest, a.Int("longest"))
		}
		observer.Stop(t)
		t.Logf("%d operations, %d refused, the longest took %v", total, refused, time.Duration(longest))
		if refused == 0 {
			t.Error("nobody was ever refused: the limit was not tried")
		}
		if used := agree(t, path); used != [abi.Devices]uint64{} {
			t.Errorf("bytes are still granted: %v", used)
		}
		for _, w := range append(workers, setter) {
			w.Quit()
		}
		pristine(t, path)
	})
}

// Shares that sum to exactly the limit are all granted, however they race; of
// shares that sum to one unit more exactly one is refused.
func TestExactFill(t *testing.T) {
	const n, share = 8, 64 * abi.Unit
	for _, tc := range []struct {
		name    string
		limit   int
		refused int
	}{
		{"exact", n * share, 0},
		{"one unit short", n*share - abi.Unit, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			harness.Crews(t, func(t *testing.T, crew harness.Crew) {
				path := newPath(t)
				var workers []*harness.Worker
				for i := range n {
					workers = append(workers, join(t, crew, i, path, tc.limit))
				}
				observer := harness.Observe(t, path, 1, uint64(tc.limit))
				for round := range rounds(200) {
					refused := fill(workers, share)
					if len(refused) != tc.refused {
						t.Fatalf("round %d: refused %v, want %d of them", round, refused, tc.refused)
					}
				}
				observer.Stop(t)
			})
		})
	}
}

// fill makes every worker ask for its share at once, and give back what it got.
func fill(workers []*harness.Worker, share int) (refused []string) {
	for _, w := range workers {
		w.Send("charge 0 data %d", share)
	}
	granted := map[*harness.Worker]bool{}
	for i, w := range workers {
		a := w.Answer()
		if granted[w] = a.Verdict() == "ok"; !granted[w] {
			refused = append(refused, fmt.Sprintf("worker %d: %s", i, a))
		}
	}
	for _, w := range workers {
		if granted[w] {
			w.OK("return 0 data %d", share)
		}
	}
	return refused
}
