package region

import (
	"sync/atomic"

	"ration/internal/abi"
)

// The ledger decides, in one compare-and-swap, whether bytes are granted.
// docs/protocols.md, section 1, gives the invariant, the steps and what a crash
// between any two of them leaves.

// ledger is one device's.
type ledger struct {
	device   *abi.Device
	accounts *[abi.Slots]abi.Account
}

func (r *Region) ledger(device int) ledger {
	return ledger{&r.m.Devices[device], &r.m.Accounts[device]}
}

func (l ledger) word() abi.LedgerWord { return abi.LedgerWord(atomic.LoadUint64(&l.device.LedgerWord)) }

// apply swaps the device's word from w to w plus delta, as slot's change seq.
func (l ledger) apply(w abi.LedgerWord, delta int64, slot int, seq uint64) bool {
	next := abi.MakeLedgerWord(w.Units()+uint64(delta), slot, seq)
	return atomic.CompareAndSwapUint64(&l.device.LedgerWord, uint64(w), uint64(next))
}

// change announces, applies and books delta units for slot, whose turn the
// caller has, and returns the word it changed. It reports false, with the word
// that stood in the way, where that would pass limit. A nil limit is none.
func (l ledger) change(slot int, delta int64, limit *uint64) (abi.LedgerWord, bool) {
	a := &l.accounts[slot]
	used := abi.Used(atomic.LoadUint64(&a.Used))
	// After the last one booked, not the last announced: a long run of refused
	// charges must not come round to the sequence that the word still shows.
	seq := abi.NextSeq(used.Seq())

	// Release: a process that sees this change in the word or in Done, judging us dead,
	// also sees what it is. Pairs with judge.
	storeRelease(&a.Pend, uint64(abi.MakePend(seq, delta)))
	point(abi.ChangeAnnounced)
	var w abi.LedgerWord
	for pause := 0; ; pause = backOff(pause) {
		w = l.word()
		// After the word, each time round: what is granted fits a limit that held
		// while the word was this one.
		ceiling := uint64(abi.MaxUnits)
		if limit != nil {
			ceiling = abi.Limit(atomic.LoadUint64(limit)).Ceiling()
		}
		after := int64(w.Units()) + delta
		if delta > 0 && uint64(after) > ceiling || after < 0 {
			if l.word() != w {
				continue // refuse only by what is so at one instant
			}
			return w, false
		}
		if w.Slot() != slot {
			l.note(w)
			point(abi.ChangeNoted)
		}
		if l.apply(w, delta, slot, seq) {
			break
		}
	}
	point(abi.ChangeApplied)
	units := uint64(int64(used.Units()) + delta)
	storeRelease(&a.Used, uint64(abi.MakeUsed(seq, units)))
	point(abi.ChangeBooked)
	if seq%abi.DoneRefresh == 0 {
		l.refresh(slot, seq)
	}
	return w, true
}

// backOff spins for a moment that grows with each lost race, up to a few hundred
// nanoseconds: many processes at one word get further by trying less often.
func backOff(pause int) int {
	for range pause {
	}
	return min(2*pause+32, 1024)
}

// note writes down that the change in w happened, before w is overwritten.
func (l ledger) note(w abi.LedgerWord) {
	done := &l.accounts[w.Slot()].Done
	for {
		// Acquire: pairs with the swap below, by the process that was faster.
		d := atomic.LoadUint64(done)
		if d == w.Seq() {
			return
		}
		// Between reading Done and swapping it: without this, a process that was
		// stopped here would write its old sequence over a newer one.
		if l.word() != w {
			return
		}
		point(abi.NoteRead)
		if atomic.CompareAndSwapUint64(done, d, w.Seq()) {
			return
		}
	}
}

// refresh is an owner's own note, made at its claim and now and then, so that
// Done is never so old that the short sequence comes round to it again.
func (l ledger) refresh(slot int, seq uint64) {
	done := &l.accounts[slot].Done
	for {
		d := atomic.LoadUint64(done)
		// Ours is the newest booked change: whatever Done says is older.
		if d == abi.ShortSeq(seq) || atomic.CompareAndSwapUint64(done, d, abi.ShortSeq(seq)) {
			return
		}
	}
}
