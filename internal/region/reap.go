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
	return r.reapAll()
}

func (r *Region) reapAll() (slots int, err error) {
	for slot := range r.high() {
		freed, err := r.reapSlot(slot)
		if err != nil {
			return slots, err
		}
		if freed {
			slots++
		}
	}
	return slots, nil
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
		freed, err := r.reapSlot(slot)
		if err != nil {
			return slots, err
		}
		if freed {
			slots++
		}
	}
	return slots, nil
}

// reapFormerSelf gives back what this very process held before it became another
// program: its PID and start time are still the same, so no other process can tell.
func (r *Region) reapFormerSelf() error {
	me := self()
	for slot := range r.high() {
		e := &r.m.Slots[slot]
		if atomic.LoadUint64(&e.PID) != uint64(me.pid) || atomic.LoadUint64(&e.PIDNS) != me.pidns {
			continue
		}
		if _, err := r.reapSlot(slot); err != nil {
			return err
		}
	}
	return nil
}

// high is how many slots are worth looking at.
func (r *Region) high() int {
	return int(min(atomic.LoadUint64(&r.m.Header.HighWater), abi.Slots))
}

// reapSlot settles a dead process's accounts and frees its slot. Any number of
// processes may do this at once, and die doing it. It reports whether the slot
// was freed here.
func (r *Region) reapSlot(slot int) (bool, error) {
	st := abi.Status(atomic.LoadUint64(&r.m.Status[slot]))
	if st.State() == abi.SlotFree || !r.alive.dead(slot, &r.m.Slots[slot], st) {
		return false, nil
	}
	for d := range abi.Devices {
		if settled, err := r.settle(d, slot, st); !settled || err != nil {
			return false, err
		}
	}
	point(abi.ReapSettled)
	free := abi.MakeStatus(st.Gen(), abi.SlotFree)
	if !atomic.CompareAndSwapUint64(&r.m.Status[slot], uint64(st), uint64(free)) {
		return false, nil
	}
	point(abi.ReapFreed)
	atomic.AddUint64(&r.m.Header.Counters.Reaped, 1)
	return true, nil
}

// verdict is what a dead account's words say, read in one piece.
type verdict struct {
	pend    abi.Pend
	used    abi.Used
	word    abi.LedgerWord
	applied bool // pend's change is in the word, or was
	booked  bool // and in used
}

// judge reads the account's words in the order that makes a crash decidable. It
// reports false where the slot has changed hands.
func (r *Region) judge(l ledger, slot int, st abi.Status) (verdict, bool) {
	a := &l.accounts[slot]
	for {
		// Acquire, each, in this order: pairs with the releases in change, and with
		// the swap in note, which comes before the word moves on.
		var v verdict
		v.pend = abi.Pend(atomic.LoadUint64(&a.Pend))
		v.used = abi.Used(atomic.LoadUint64(&a.Used))
		v.word = l.word()
		done := atomic.LoadUint64(&a.Done)
		again := abi.Pend(atomic.LoadUint64(&a.Pend))
		if abi.Status(atomic.LoadUint64(&r.m.Status[slot])) != st {
			return v, false
		}
		if again != v.pend {
			continue
		}
		short := abi.ShortSeq(v.pend.Seq())
		v.booked = v.used.Seq() == v.pend.Seq()
		v.applied = v.booked || v.word.Slot() == slot && v.word.Seq() == short || done == short
		return v, true
	}
}

// settle brings a dead account to zero. Every step is one swap from a value that
// includes a sequence, so that a step made late does nothing. It reports false
// where the slot has changed hands.
func (r *Region) settle(device, slot int, st abi.Status) (bool, error) {
	l := r.ledger(device)
	a := &l.accounts[slot]
	for {
		v, ours := r.judge(l, slot, st)
		if !ours {
			return false, nil
		}
		point(abi.ReapJudged)
		seq, delta := v.pend.Seq(), v.pend.Delta()
		switch {
		case v.applied && !v.booked:
			units := int64(v.used.Units()) + delta
			if units < 0 || units > abi.MaxUnits {
				return false, r.damaged()
			}
			atomic.CompareAndSwapUint64(&a.Used, uint64(v.used), uint64(abi.MakeUsed(seq, uint64(units))))
			point(abi.ReapBooked)

		case !v.applied && delta < 0:
			// A return that was announced is finished, never replaced: another reaper
			// may be applying it now.
			if int64(v.word.Units())+delta < 0 {
				return false, r.damaged()
			}
			l.note(v.word)
			point(abi.ReapNoted)
			l.apply(v.word, delta, slot, seq)
			point(abi.ReapApplied)

		case v.used.Units() > 0:
			// All is booked, or a charge was announced that no process can apply any more.
			next := abi.MakePend(abi.NextSeq(v.used.Seq()), -int64(v.used.Units()))
			atomic.CompareAndSwapUint64(&a.Pend, uint64(v.pend), uint64(next))
			point(abi.ReapAnnounced)

		default:
			return true, nil
		}
	}
}
