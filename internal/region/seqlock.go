package region

import (
	"sync"
	"sync/atomic"

	"ration/internal/abi"
)

// An account's usage is stored twice, so that a reader never waits. docs/protocols.md, *The
// sequence lock*, gives the invariant.

// turn serialises the threads of a process that change one account of its slot. It is in the
// process's own memory, so that no other process can leave it locked. It also keeps the usage
// there, so that a foreign write to the mapped usage lasts only until the next change.
type turn struct {
	sync.Mutex
	entered bool // the account belongs to this owner
	peak    uint64
	usage   abi.Usage
}

// enter makes the account belong to the owner of generation gen, with an empty usage and an idle
// phase, whatever the last owner left. Readers skip the account until Gen has this value. It is
// called again if a process that was taken for dead wrote its own generation over ours.
func (t *turn) enter(a *abi.Account, gen uint64) {
	if !t.entered {
		t.entered = true
		for _, word := range []*uint64{&a.Driver, &a.Work, &a.Slice, &a.TimeUsed, &a.TimeWaited, &a.Uncharged, &a.ExportLock, &a.Exported} {
			storeRelease(word, 0)
		}
	}
	t.publish(a)
	// Release: pairs with the load of Gen in read.
	storeRelease(&a.Gen, gen)
}

// put adds delta to this process's usage of a kind, and publishes it. It returns how often the
// account has been changed.
func (t *turn) put(a *abi.Account, kind abi.Kind, delta int64) uint64 {
	t.usage.Total += uint64(delta)
	t.usage.Kind[kind] += uint64(delta)
	t.peak = max(t.peak, t.usage.Total)
	return t.publish(a)
}

// clear publishes that this process holds nothing any more.
func (t *turn) clear(a *abi.Account) {
	t.usage = abi.Usage{}
	t.publish(a)
}

// publish writes the turn's whole usage for readers each time. So nothing remains that was written
// by a process which was taken for dead and continued when the slot was ours.
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

// idlePhase returns an idle phase that follows p, whatever its value: a dead owner leaves it odd.
func idlePhase(p uint64) uint64 {
	if value := p % abi.Phases; value != abi.PhaseIdle {
		return p - value + abi.Phases
	}
	return p
}

func storeUsage(to, f *abi.Usage) {
	// Release, each: a reader that sees one of these must also see the phase before it, so that its
	// second read of Phase finds a change. Pairs with read. Equal values are not stored, because a
	// store is a function call and a load is not.
	if atomic.LoadUint64(&to.Total) != f.Total {
		storeRelease(&to.Total, f.Total)
	}
	for k := range f.Kind {
		if atomic.LoadUint64(&to.Kind[k]) != f.Kind[k] {
			storeRelease(&to.Kind[k], f.Kind[k])
		}
	}
}

// read reads the usage of the owner of generation gen consistently. retries is the number of
// retries; after abi.ReadTries of them f may be inconsistent.
func read(a *abi.Account, gen uint64, f *abi.Usage) (retries int, peak uint64) {
	for {
		// Acquire, each, in this order: pairs with the stores in publish and enter.
		t := atomic.LoadUint64(&a.Phase)
		if atomic.LoadUint64(&a.Gen) != gen {
			*f = abi.Usage{} // the previous owner's; this owner has held nothing yet
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
		// Between phase 0 and 1 the copy that was read is not written.
		if atomic.LoadUint64(&a.Phase)|abi.PhaseB == t|abi.PhaseB {
			return retries, peak
		}
		if retries++; retries == abi.ReadTries {
			return retries, peak
		}
	}
}
