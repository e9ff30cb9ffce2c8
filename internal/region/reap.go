package region

import (
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"ration/internal/abi"
)

// Reap returns the memory of dead processes on all devices, and frees their slots. It returns the
// number of slots that it freed, or left with memory that is lent from now on.
func (r *Region) Reap() (slots int, err error) { return r.ReapWhile(func() bool { return true }) }

// ReapWhile is Reap until more returns false, for a region whose users may make it take long.
func (r *Region) ReapWhile(more func() bool) (slots int, err error) {
	if !r.writable {
		return 0, fmt.Errorf("region %s: %w", r.path, ErrReadOnly)
	}
	defer r.guard(&err, debug.SetPanicOnFault(true))
	if err := r.whole(); err != nil {
		return 0, err
	}
	for slot := range r.high() {
		if !more() {
			break
		}
		if r.reapSlot(slot) {
			slots++
		}
	}
	return slots, nil
}

// reapDevice frees the slots of dead processes that may hold memory of device. It does not check
// other processes: a refusal must not cost a query for every process.
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

// reapFormerSelf returns the memory that this process held before it executed another program. Its
// PID and start time are the same, so no other process can notice that.
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

// high returns how many slots need to be scanned.
func (r *Region) high() int {
	return int(min(atomic.LoadUint64(&r.m.Header.HighWater), abi.Slots))
}

// reapSlot settles a dead process's accounts and frees its slot. Several processes may do this at
// the same time, and any of them may die in the middle. It returns true if this call freed the
// slot, or left it with memory that is lent from now on. A slot with impossible content is put out
// of use for good: its memory stays granted, and processes that use other slots get no error.
func (r *Region) reapSlot(slot int) bool {
	st, cause, dead := r.condemn(slot)
	if !dead {
		return false
	}
	state, wasLent := abi.SlotFree, st.State() == abi.SlotLent
	expected := r.expected(slot, st)
	for d := range abi.Devices {
		r.settleTime(d, slot, st)
		// Ask after the slot is condemned: before that its owner may still export.
		switch r.settle(d, slot, st, r.lentUnits(d, slot, st)) {
		case taken:
			return false
		case lent:
			if state == abi.SlotFree {
				state = abi.SlotLent
			}
		case impossible:
			state = abi.SlotDamaged
		}
	}
	point(abi.ReapSettled)
	if wasLent && state == abi.SlotLent {
		return false
	}
	death := r.describe(slot, st, cause)
	if !atomic.CompareAndSwapUint64(&r.m.Status[slot], uint64(st), uint64(abi.MakeStatus(st.Gen(), state))) {
		return false
	}
	point(abi.ReapFreed)
	if state == abi.SlotDamaged {
		atomic.AddUint64(&r.m.Header.Counters.Damaged, 1)
		return false
	}
	if expected || wasLent {
		return true // neither an orderly end nor one that was asked for is a death, and a death is recorded once
	}
	atomic.AddUint64(&r.m.Header.Counters.Reaped, 1)
	if cause != abi.CauseJoining { // with CauseJoining the slot describes the previous owner
		r.record(death)
	}
	return true
}

// left reports whether the owner of a slot has announced its exit.
func (r *Region) left(slot int, st abi.Status) bool {
	return atomic.LoadUint64(&r.m.Slots[slot].Left) == st.Gen()
}

// expected reports whether the end of a slot's owner is no death: the owner has announced it, or was told to end.
func (r *Region) expected(slot int, st abi.Status) bool {
	return r.left(slot, st) || abi.Told(atomic.LoadUint64(&r.m.Slots[slot].Told)).Counts(st.Gen(), time.Now().Unix())
}

// condemn marks a slot's owner as dead, for all processes and for the owner itself in case it is
// alive. Only after that its accounts are settled, under the returned status.
func (r *Region) condemn(slot int) (st abi.Status, cause int, dead bool) {
	st = abi.Status(atomic.LoadUint64(&r.m.Status[slot]))
	switch st.State() {
	case abi.SlotCondemned, abi.SlotLent:
		return st, abi.CauseUnknown, true // another process has condemned it and has not finished, or has left it lent
	case abi.SlotJoining, abi.SlotActive:
		if cause = r.alive.dead(slot, &r.m.Slots[slot], st); cause == 0 {
			return st, 0, false
		}
	default:
		return st, 0, false
	}
	if st.State() == abi.SlotJoining {
		return st, cause, true // it has never announced a change
	}
	condemned := abi.MakeStatus(st.Gen(), abi.SlotCondemned)
	// Full order: our reads of Pend come after it. Pairs with ours, after the owner's swap of Pend.
	if !atomic.CompareAndSwapUint64(&r.m.Status[slot], uint64(st), uint64(condemned)) {
		return st, 0, false
	}
	point(abi.ReapCondemned)
	return condemned, cause, true
}

// verdict is the state of a dead account's words, read consistently.
type verdict struct {
	pend    abi.Pend
	used    abi.Used
	word    abi.LedgerWord
	whole   bool // they did not change during the read; otherwise the other fields are meaningless
	applied bool // pend's change is in the word, or was
	booked  bool // and also in used
}

// judge reads the account's words in the order that makes the state after a crash decidable. It
// returns false if the slot has changed its owner.
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

// settlement is the result of settling an account.
type settlement int

const (
	settled    settlement = iota
	lent                  // all but lent memory is returned
	taken                 // the slot has changed its owner, or is left to the next reaper
	impossible            // its content is impossible
)

// settle returns the memory of a condemned slot's account, except for keep units. Every step is one swap from a value that
// includes a sequence, so a late step does nothing. If a process keeps writing into the account,
// against the protocol, it is left for the next reaper, as after a reaper that died.
func (r *Region) settle(device, slot int, st abi.Status, keep uint64) settlement {
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
			// Finish a return that is announced, never replace it: another reaper may be applying it now.
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
			// It is a charge. Its owner may be alive and about to apply it. From here on it cannot,
			// so the following steps may use its sequence.
			if !l.note(v.word) {
				return taken
			}
			point(abi.ReapNoted)
			if !l.fence(v.word) {
				continue
			}
			point(abi.ReapFenced)
		}
		if units := v.used.Units(); units == 0 {
			return settled
		} else if units <= keep {
			return lent
		}
		next := abi.MakePend(abi.NextSeq(v.used.Seq()), -int64(v.used.Units()-keep))
		atomic.CompareAndSwapUint64(&a.Pend, uint64(v.pend), uint64(next))
		point(abi.ReapAnnounced)
	}
	return taken
}
