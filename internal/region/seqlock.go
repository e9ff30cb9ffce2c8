package region

import (
	"sync"
	"sync/atomic"

	"ration/internal/abi"
)

// The view is an account's figures, kept twice so that a reader never waits.
// docs/protocols.md, *The sequence lock*, gives the invariant.

// turn is what the threads of a process take turns at: one account of its slot. It
// is in memory of the process's own, so that no other can leave it held, and so is
// what it holds: what others wrote into the mapped figures lasts until the next
// change.
type turn struct {
	sync.Mutex
	entered bool // the account is this owner's
	peak    uint64
	usage   abi.Usage
}

// enter makes the account the owner's of generation gen: what it holds, nothing,
// and an idle phase, whatever the last owner left. Until Gen says so, readers pass
// it over. Again where a process that was taken for dead wrote its own generation
// over ours.
func (t *turn) enter(a *abi.Account, gen uint64) {
	if !t.entered {
		t.entered = true
		for _, word := range []*uint64{&a.Driver, &a.Work, &a.Slice, &a.TimeUsed, &a.TimeWaited} {
			storeRelease(word, 0)
		}
	}
	t.publish(a)
	// Release: pairs with the load of Gen in read.
	storeRelease(&a.Gen, gen)
}

// put adds to what this process holds of a kind, and shows it to readers. It
// returns how often the account has been changed.
func (t *turn) put(a *abi.Account, kind abi.Kind, delta int64) uint64 {
	t.usage.Total += uint64(delta)
	t.usage.Kind[kind] += uint64(delta)
	t.peak = max(t.peak, t.usage.Total)
	return t.publish(a)
}

// clear shows that this process holds nothing any more.
func (t *turn) clear(a *abi.Account) {
	t.usage = abi.Usage{}
	t.publish(a)
}

// publish shows the turn's usage to readers. All of it, each time: so nothing lasts
// of what a process wrote that was taken for dead, and went on when the slot was
// ours.
func (t *turn) publish(a *abi.Account) uint64 {
	idle := idlePhase(atomic.LoadUint64(&a.Phase))
	storeRelease(&a.Phase, idle+abi.PhaseB)
	storeUsage(&a.B, &t.usage)
	point(abi.SeqlockB)
	storeRelease(&a.Phase, idle+abi.PhaseA)
	point(abi.SeqlockTurned)
	storeUsage(&a.A, &t.usage)
	point(abi.SeqlockA)
	if t.peak != atomic.LoadUint64(&a.Peak) {
		storeRelease(&a.Peak, t.peak)
	}
	storeRelease(&a.Phase, idle+abi.Phases)
	return idle / abi.Phases
}

// idlePhase is an idle phase to go on from, whatever the word holds: a dead owner
// leaves it odd.
func idlePhase(p uint64) uint64 {
	if value := p % abi.Phases; value != abi.PhaseIdle {
		return p - value + abi.Phases
	}
	return p
}

func storeUsage(to, f *abi.Usage) {
	// Release, each: a reader that sees one of these must also see the phase before
	// it, so that its second look at Phase finds a change. Pairs with read. What is
	// there already need not be stored: that is a call, and a load is none.
	if atomic.LoadUint64(&to.Total) != f.Total {
		storeRelease(&to.Total, f.Total)
	}
	for k := range f.Kind {
		if atomic.LoadUint64(&to.Kind[k]) != f.Kind[k] {
			storeRelease(&to.Kind[k], f.Kind[k])
		}
	}
}

// read takes the figures of the owner of generation gen in one piece. retries
// counts the tries beyond the first; abi.ReadTries of them mean that f is best
// effort.
func read(a *abi.Account, gen uint64, f *abi.Usage) (retries int, peak uint64) {
	for {
		// Acquire, each, in this order: pairs with the stores in publish and enter.
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
		point(abi.ReadCopied)
		// From phase 0 to 1 the copy that was read stays as it is.
		if atomic.LoadUint64(&a.Phase)|abi.PhaseB == t|abi.PhaseB {
			return retries, peak
		}
		if retries++; retries == abi.ReadTries {
			return retries, peak
		}
	}
}
