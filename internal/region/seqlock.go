package region

import (
	"runtime"
	"sync/atomic"
	"time"

	"ration/internal/abi"
)

// The view is an account's figures, kept twice so that a reader never waits.
// docs/protocols.md, section 2, gives the invariant.

// turnBound is how long a turn may stand still before it cannot be a thread of
// this process that has it. It is shorter in tests that damage regions.
var turnBound = time.Duration(abi.TurnBoundNS)

// take takes the account's turn: phase 0 to phase 1. Only threads of the owning
// process meet here. It reports false where the turn never comes, because the
// word is damaged.
func take(a *abi.Account, broken *atomic.Bool) (turn uint64, ok bool) {
	t := atomic.LoadUint64(&a.Phase)
	if t%abi.Phases == abi.PhaseIdle && atomic.CompareAndSwapUint64(&a.Phase, t, t+abi.PhaseB) {
		return t, true
	}
	return takeSlowly(a, broken)
}

func takeSlowly(a *abi.Account, broken *atomic.Bool) (turn uint64, ok bool) {
	var seen uint64
	var since time.Time
	for tries := 0; ; tries++ {
		t := atomic.LoadUint64(&a.Phase)
		if t%abi.Phases == abi.PhaseIdle && atomic.CompareAndSwapUint64(&a.Phase, t, t+abi.PhaseB) {
			return t, true
		}
		switch {
		case tries < 32:
		case tries < 128:
			runtime.Gosched()
		default:
			if t != seen || since.IsZero() {
				seen, since = t, time.Now()
			} else if broken.Load() || time.Since(since) > turnBound {
				return 0, false // a thread of ours met the damage in its turn
			}
			time.Sleep(50 * time.Microsecond) // the holder may need our CPU to go on
		}
	}
}

// put publishes new figures and ends the turn.
func put(a *abi.Account, turn uint64, kind abi.Kind, delta int64) {
	total := a.A.Total + uint64(delta)
	bytes := a.A.Kind[kind] + uint64(delta)

	// Release, each: a reader that sees one of these must also see the phase
	// before it, so that its second look at Turn finds a change. Pairs with read.
	storeRelease(&a.B.Total, total)
	storeRelease(&a.B.Kind[kind], bytes)
	point(abi.SeqlockB)
	storeRelease(&a.Phase, turn+abi.PhaseA)
	point(abi.SeqlockTurned)
	storeRelease(&a.A.Total, total)
	storeRelease(&a.A.Kind[kind], bytes)
	point(abi.SeqlockA)
	if total > a.Peak {
		storeRelease(&a.Peak, total)
	}
	leave(a, turn)
}

// clearFigures publishes zeroes and ends the turn.
func clearFigures(a *abi.Account, turn uint64) {
	zero(&a.B)
	point(abi.SeqlockB)
	storeRelease(&a.Phase, turn+abi.PhaseA)
	point(abi.SeqlockTurned)
	zero(&a.A)
	point(abi.SeqlockA)
	leave(a, turn)
}

func zero(f *abi.Usage) {
	storeRelease(&f.Total, 0)
	for k := range f.Kind {
		storeRelease(&f.Kind[k], 0)
	}
}

// leave ends a turn. Without put before it, nothing has changed.
func leave(a *abi.Account, turn uint64) {
	storeRelease(&a.Phase, turn+abi.Phases)
	point(abi.TurnLeft)
}

// enter makes the account the owner's of generation gen: zeroes and an even
// count, whatever the last one left. Until Gen says so, readers pass it over; two
// threads do not do this at once.
func enter(a *abi.Account, gen uint64) {
	t := atomic.LoadUint64(&a.Phase)
	zero(&a.A)
	zero(&a.B)
	storeRelease(&a.Peak, 0)
	storeRelease(&a.Driver, 0)
	storeRelease(&a.Phase, t-t%abi.Phases+abi.Phases)
	// Release: pairs with the load of Gen in read.
	storeRelease(&a.Gen, gen)
}

// read takes the figures of the owner of generation gen in one piece. retries
// counts the tries beyond the first; abi.ReadTries of them mean that f is best
// effort.
func read(a *abi.Account, gen uint64, f *abi.Usage) (retries int, peak uint64) {
	for {
		// Acquire, each, in this order: pairs with the stores in put and enter.
		t := atomic.LoadUint64(&a.Phase)
		if atomic.LoadUint64(&a.Gen) != gen {
			*f = abi.Usage{} // the last owner's; this one has not had anything
			return retries, 0
		}
		from := &a.A
		if t%abi.Phases == abi.PhaseA {
			from = &a.B
		}
		f.Total = atomic.LoadUint64(&from.Total)
		for k := range f.Kind {
			f.Kind[k] = atomic.LoadUint64(&from.Kind[k])
		}
		peak = atomic.LoadUint64(&a.Peak)
		// From phase 0 to 1 the copy that was read stays as it is.
		if atomic.LoadUint64(&a.Phase)|abi.PhaseB == t|abi.PhaseB {
			return retries, peak
		}
		if retries++; retries == abi.ReadTries {
			return retries, peak
		}
	}
}
