package processes

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"ration/check/expect"
	"ration/check/observer"
	"ration/internal/abi"
)

// churning starts n workers that charge and return without pause, every third
// with several threads.
func churning(t *testing.T, mix impls, n int, path string, most int) []*worker {
	t.Helper()
	workers := make([]*worker, n)
	for i := range workers {
		workers[i] = join(t, mix, i, path)
		workers[i].OK("%schurn 0 %d %d", []string{"", "", "threads 4 "}[i%3], i, most)
	}
	return workers
}

// While 8 processes charge and return without pause no reading ever exceeds the limit,
// and when they are done nothing is left.
func TestLimitHolds(t *testing.T) {
	walkMix(t, func(t *testing.T, mix impls) {
		const limit = 2 * mib
		path := newPath(t)
		setter := join(t, mix, 0, path, limit)
		observer := observe(t, path, 1, limit)
		workers := churning(t, mix, 8, path, limit/8)

		for deadline := time.Now().Add(time.Duration(rounds(2)) * time.Second); time.Now().Before(deadline); {
			// The setter's requests are granted or refused meanwhile, never lost.
			if setter.Ask("charge 0 data %d", limit/2).Verdict() == "ok" {
				setter.OK("return 0 data %d", limit/2)
			}
		}
		total, refused, longest := 0, 0, 0
		for _, w := range workers {
			a := w.OK("stop")
			total, refused, longest = total+a.Int("ops"), refused+a.Int("refused"), max(longest, a.Int("longest"))
		}
		observer.mustHold(t)
		t.Logf("%d operations, %d refused, the longest took %v", total, refused, time.Duration(longest))
		expect.True(t, refused != 0, "no request was refused: the limit was not reached")
		expect.Equal(t, balanced(t, path), [abi.Devices]uint64{}, "bytes are still granted")
		finish(t, path, append(workers, setter)...)
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
			walkMix(t, func(t *testing.T, mix impls) {
				path := newPath(t)
				var workers []*worker
				for i := range n {
					workers = append(workers, join(t, mix, i, path, tc.limit))
				}
				observer := observe(t, path, 1, uint64(tc.limit))
				for round := range rounds(200) {
					refused := fill(workers, share)
					expect.Must(t, len(refused) == tc.refused, "round", round, "refused", refused, tc.refused, "of them")
				}
				observer.mustHold(t)
			})
		})
	}
}

// fill has all workers charge their share at once, and return it. It returns which
// were refused.
func fill(workers []*worker, share int) (refused []string) {
	for _, w := range workers {
		w.Tell("charge 0 data %d", share)
	}
	granted := map[*worker]bool{}
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

// The observer reports a region in which more is granted than the limit allows.
func TestObserverCanFail(t *testing.T) {
	path := newPath(t)
	w := join(t, goOnly(), 0, path, 2*mib)
	o := observe(t, path, 1, mib)
	w.OK("charge 0 overhead %d", mib+abi.Unit)
	<-o.Ended() // it ends by itself only with an error
	err := o.Stop()
	expect.True(t, errors.Is(err, observer.ErrViolated), "a limit exceeded by one unit", err)
}

// The comparison of accounts reports a process that died after its charge was applied:
// the bytes are granted until it is reaped, but no slot holds them.
func TestUnbalanced(t *testing.T) {
	path := newPath(t)
	survivor := join(t, goOnly(), 0, path, mib)
	dead := faulty(t, goOnly(), 0, abi.ChangeApplied, 1, "kill")
	dead.join(path, "dead")
	dead.fault("charge 0 data 4096")
	dead.Kill()
	checker := openChecker(t, path)
	defer checker.Close()
	_, err := checker.Balanced(0)
	expect.True(t, errors.Is(err, observer.ErrViolated), "a charge that is applied and not booked", err)
	survivor.OK("reap")
	checkUsed(t, path, 0)
}
