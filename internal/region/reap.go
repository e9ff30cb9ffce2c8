package region

import (
	"fmt"
	"runtime/debug"
	"sync/atomic"

	"ration/internal/abi"
)

// Reap gives back what dead processes hold, on all devices, and frees their
// slots. It returns how many slots that were.
func (r *Region) Reap() (slots int, err error) {
	if !r.writable {
		return 0, fmt.Errorf("region %s: %w", r.path, ErrReadOnly)
	}
	defer r.guard(&err, debug.SetPanicOnFault(true))
	if err := r.whole(); err != nil {
		return 0, err
	}
	return r.reapAll(), nil
}

func (r *Region) reapAll() (slots int) {
	for slot := range r.high() {
		if r.reapSlot(slot) {
			slots++
		}
	}
	return slots
}

// reapDevice frees the slots of dead processes that may hold something of
// device. It looks at no other user: a refusal must not cost a question to the
// kernel for every process there is.
func (r *Region) reapDevice(device, except int) (slots int, err error) {
	defer r.guard(&err, debug.SetPanicOnFault(true))
	for slot := range r.high() {
		a := &r.m.Accounts[device][slot]
		u, p := abi.Used(atomic.LoadUint64(&a.Used)), abi.Pend(atomic.LoadUint64(&a.Pend))
		if slot == except || u.Units() == 0 && u.Seq() == p.Seq() {
			continue
		}
		if r.reapSlot(slot) {
			slots++
		}
	}
	return slots, nil
}

// reapFormerSelf gives back what this very process held before it became another
// program: its PID and start time are still the same, so no other process can tell.
func (r *Region) reapFormerSelf() {
	me := self()
	for slot := range r.high() {
		e := &r.m.Slots[slot]
		if atomic.LoadUint64(&e.PID) != uint64(me.pid) || atomic.LoadUint64(&e.PIDNS) != me.pidns {
			continue
		}
		r.reapSlot(slot)
	}
}

// high is how many slots are worth looking at.
func (r *Region) high() int {
	return int(min(atomic.LoadUint64(&r.m.Header.HighWater), abi.Slots))
}

// reapSlot settles a dead process's accounts and frees its slot. Any number of
// processes may do this at once, and die doing it. It reports whether the slot was
// freed here. One whose content cannot be is put out of use, once and for all: what
// it holds stays granted, and is no error for the processes that need the rest.
func (r *Region) reapSlot(slot int) bool {
	st, cause, dead := r.condemn(slot)
	if !dead {
		return false
	}
	state, left := abi.SlotFree, r.left(slot, st)
	for d := range abi.Devices {
		switch r.settle(d, slot, st) {
		case taken:
			return false
		case impossible:
			state = abi.SlotDamaged
		}
	}
	point(abi.ReapSettled)
	death := r.describe(slot, st, cause)
	if !atomic.CompareAndSwapUint64(&r.m.Status[slot], uint64(st), uint64(abi.MakeStatus(st.Gen(), state))) {
		return false
	}
	point(abi.ReapFreed)
	if state == abi.SlotDamaged {
		atomic.AddUint64(&r.m.Header.Counters.Damaged, 1)
		return false
	}
	if left {
		return true // an orderly end is no death
	}
	atomic.AddUint64(&r.m.Header.Counters.Reaped, 1)
	if cause != abi.CauseJoining { // then the slot describes the owner before
		r.record(death)
	}
	return true
}

// left reports whether the owner of a slot has said that it ends.
func (r *Region) left(slot int, st abi.Status) bool {
	return atomic.LoadUint64(&r.m.Slots[slot].Left) == st.Gen()
}

// condemn tells a slot's owner, should it live after all, and all other processes
// that it is dead. Only then are its accounts settled, under the status returned.
func (r *Region) condemn(slot int) (st abi.Status, cause int, dead bool) {
	st = abi.Status(atomic.LoadUint64(&r.m.Status[slot]))
	switch st.State() {
	case abi.SlotCondemned:
		return st, abi.CauseUnknown, true // by a process that has not finished
	case abi.SlotJoining, abi.SlotActive:
		if cause = r.alive.dead(slot, &r.m.Slots[slot], st); cause == 0 {
			return st, 0, false
		}
	default:
		return st, 0, false
	}
	if st.State() == abi.SlotJoining {
		return st, cause, true // it has never announced anything
	}
	condemned := abi.MakeStatus(st.Gen(), abi.SlotCondemned)
	// Full order: our reads of Pend come after it. Pairs with ours, after the owner's
	// swap of Pend.
	if !atomic.CompareAndSwapUint64(&r.m.Status[slot], uint64(st), uint64(condemned)) {
		return st, 0, false
	}
	point(abi.ReapCondemned)
	return condemned, cause, true
}

// verdict is what a dead account's words say, read in one piece.
type verdict struct {
	pend    abi.Pend
	used    abi.Used
	word    abi.LedgerWord
	whole   bool // they did not change meanwhile; otherwise the rest says nothing
	applied bool // pend's change is in the word, or was
	booked  bool // and in used
}

// judge reads the account's words in the order that makes a crash decidable. It
// reports false where the slot has changed hands.
func (r *Region) judge(l ledger, slot int, st abi.Status) (verdict, bool) {
	a := &l.accounts[slot]
	// Acquire, each, in this order: pairs with the releases in change, and with
	// the swap in note, which comes before the word moves on.
	var v verdict
	v.pend = abi.Pend(atomic.LoadUint64(&a.Pend))
	v.used = abi.Used(atomic.LoadUint64(&a.Used))
	v.word = l.word()
	done := atomic.LoadUint64(&a.Done)
	v.whole = abi.Pend(atomic.LoadUint64(&a.Pend)) == v.pend
	if abi.Status(atomic.LoadUint64(&r.m.Status[slot])) != st {
		return v, false
	}
	short := abi.ShortSeq(v.pend.Seq())
	v.booked = v.used.Seq() == v.pend.Seq()
	v.applied = v.booked || v.word.Slot() == slot && v.word.Seq() == short || done == short
	return v, true
}

// settlement is what became of an account.
type settlement int

const (
	settled    settlement = iota
	taken                 // the slot has changed hands; or it is left to the next
	impossible            // its content cannot be
)

// settle brings a condemned slot's account to zero. Every step is one swap from a
// value that includes a sequence, so that a step made late does nothing. An account into which a
// process writes all the while, which none does that keeps to the protocol, stays as a reaper that
// dies leaves it, for the next.
func (r *Region) settle(device, slot int, st abi.Status) settlement {
	l := r.ledger(device)
	a := &l.accounts[slot]
	for range abi.ReapTries {
		v, ours := r.judge(l, slot, st)
		if !ours {
			return taken
		}
		point(abi.ReapJudged)
		if !v.whole {
			continue
		}
		seq, delta := v.pend.Seq(), v.pend.Delta()
		if v.applied && !v.booked {
			units := int64(v.used.Units()) + delta
			if units < 0 || units > abi.MaxUnits {
				return impossible
			}
			atomic.CompareAndSwapUint64(&a.Used, uint64(v.used), uint64(abi.MakeUsed(seq, uint64(units))))
			point(abi.ReapBooked)
			continue
		}
		if !v.applied && delta < 0 {
			// A return that was announced is finished, never replaced: another reaper
			// may be applying it now.
			if int64(v.word.Units())+delta < 0 {
				return impossible
			}
			if !l.note(v.word) {
				return taken
			}
			point(abi.ReapNoted)
			l.apply(v.word, delta, slot, seq)
			point(abi.ReapApplied)
			continue
		}
		if !v.applied {
			// A charge. Should its owner live after all, and be about to apply it: from
			// here on it cannot, so that what follows may take its sequence.
			if !l.note(v.word) {
				return taken
			}
			point(abi.ReapNoted)
			if !l.fence(v.word) {
				continue
			}
			point(abi.ReapFenced)
		}
		if v.used.Units() == 0 {
			return settled
		}
		next := abi.MakePend(abi.NextSeq(v.used.Seq()), -int64(v.used.Units()))
		atomic.CompareAndSwapUint64(&a.Pend, uint64(v.pend), uint64(next))
		point(abi.ReapAnnounced)
	}
	return taken
}
