package region

import (
	"fmt"
	"runtime/debug"
	"sync/atomic"

	"ration/internal/abi"
)

// The ledger decides, in one compare-and-swap, whether bytes are granted. docs/protocols.md, *The
// ledger*, gives the invariant, the steps, and the state after a crash between any two of them.

// ledger is the ledger of one device.
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

// fence replaces w by a word that has never been there, with the same units. So a process that has
// read an earlier word and is about to swap it fails.
func (l ledger) fence(w abi.LedgerWord) bool {
	next := abi.MakeLedgerWord(w.Units(), abi.FenceSlot, atomic.AddUint64(&l.device.Fences, 1)-1)
	return atomic.CompareAndSwapUint64(&l.device.LedgerWord, uint64(w), uint64(next))
}

// maxFences bounds the tries of Fence, because the region may belong to a tenant that changes the
// word forever.
const maxFences = 1 << 16

// Fence puts a fence into a device's word, and returns how many bytes are granted at that instant.
// Every request that is granted later reads the limit after the fence. So if a limit was lowered
// before, the granted amount grows no further than the new limit, or than it is already.
func (r *Region) Fence(device int) (held uint64, err error) {
	if err := checkDevice(device); err != nil {
		return 0, err
	}
	defer r.guard(&err, debug.SetPanicOnFault(true))
	if err := r.whole(); err != nil {
		return 0, err
	}
	if !r.writable {
		return 0, fmt.Errorf("region %s: %w", r.path, ErrReadOnly)
	}
	l := r.ledger(device)
	for range maxFences {
		w := l.word()
		if l.note(w) && l.fence(w) {
			return w.Units() * abi.Unit, nil
		}
	}
	return 0, fmt.Errorf("region %s: device %d: %w: its word does not rest", r.path, device, ErrDamaged)
}

// announce announces delta units as the account's next change, and returns the usage before it. It
// returns false if the slot was taken away.
func (s *Slot) announce(a *abi.Account, delta int64) (abi.Used, bool) {
	for {
		pend := atomic.LoadUint64(&a.Pend)
		used := abi.Used(atomic.LoadUint64(&a.Used))
		if !s.ours() {
			return used, false
		}
		point(abi.ChangeRead)
		// The sequence follows the last booked one, not the last announced one: after many refused
		// charges it must not reach the sequence that the word still shows. Full order: a process
		// that sees this change in the word or in Done, and judges us dead, also sees what the
		// change is (pairs with judge); and our next read of the status comes after it. The swap
		// fails if the slot is being reaped, or if the slot's last owner, which was taken for dead,
		// announces a change that it will not be able to apply.
		if atomic.CompareAndSwapUint64(&a.Pend, pend, uint64(abi.MakePend(abi.NextSeq(used.Seq()), delta))) {
			return used, true
		}
	}
}

// outcome is the result of a change.
type outcome int

const (
	changed outcome = iota
	noRoom          // it would exceed the limit; or a return would leave a negative amount
	evicted         // the slot was taken away; everything that was applied has been returned with the rest
)

// changeLedger announces, applies and books delta units. The caller has the account's turn. It
// returns the word that it changed, or the word that did not allow the change. A nil limit means no
// limit.
func (s *Slot) changeLedger(device int, delta int64, limit *uint64) (abi.LedgerWord, outcome) {
	l := s.r.ledger(device)
	a := &l.accounts[s.index]
	used, ours := s.announce(a, delta)
	if !ours {
		return 0, evicted
	}
	seq := abi.NextSeq(used.Seq())
	point(abi.ChangeAnnounced)
	var w abi.LedgerWord
	for pause := 0; ; pause = backOff(pause) {
		w = l.word()
		// Check after reading the word, and before swapping it. A reaper condemns the slot and then
		// puts a fence into the word: this process notices one of the two.
		if !s.ours() {
			return w, evicted
		}
		// Read the limit after the word, each time: what is granted fits a limit that applied while
		// the word had this value.
		ceiling := uint64(abi.MaxUnits)
		if limit != nil {
			ceiling = abi.Limit(atomic.LoadUint64(limit)).Ceiling()
		}
		after := int64(w.Units()) + delta
		if delta > 0 && uint64(after) > ceiling || after < 0 {
			if l.word() != w {
				continue // refuse only on the state of one instant
			}
			return w, noRoom
		}
		if w.Slot() != s.index {
			if !l.note(w) {
				continue
			}
			point(abi.ChangeNoted)
		}
		if l.apply(w, delta, s.index, seq) {
			break
		}
	}
	point(abi.ChangeApplied)
	units := uint64(int64(used.Units()) + delta)
	// This must be a swap: a reaper that found the change applied has booked and returned it.
	if !atomic.CompareAndSwapUint64(&a.Used, uint64(used), uint64(abi.MakeUsed(seq, units))) {
		return w, evicted
	}
	point(abi.ChangeBooked)
	if seq%abi.DoneRefresh == 0 {
		s.refresh(a, seq)
	}
	return w, changed
}

// backOff spins for a time that grows with each lost race, up to a few hundred nanoseconds: many
// processes that change one word progress faster if they try less often.
func backOff(pause int) int {
	for range pause {
	}
	return min(2*pause+32, 1024)
}

// note records that the change in w happened, before w is overwritten. It returns false if it could
// not, because a process keeps writing over it, against the protocol. Then w must stay.
func (l ledger) note(w abi.LedgerWord) bool {
	done := &l.accounts[w.Slot()].Done
	for range abi.ReapTries {
		// Acquire: pairs with the swap below, by the process that was faster.
		d := atomic.LoadUint64(done)
		if d == w.Seq() {
			return true
		}
		// Check between reading Done and swapping it. Without this, a process that was stopped here
		// would later write its old sequence over a newer one.
		if l.word() != w {
			return true
		}
		point(abi.NoteRead)
		if atomic.CompareAndSwapUint64(done, d, w.Seq()) {
			return true
		}
	}
	return false
}

// refresh writes the owner's sequence seq to the account's Done. The owner calls it before its
// first change and then every DoneRefresh changes. Otherwise Done could keep a value for so long
// that the short sequence wraps around and reaches that value again.
func (s *Slot) refresh(a *abi.Account, seq uint64) {
	for {
		d := atomic.LoadUint64(&a.Done)
		// Check the status between reading Done and swapping it: if the slot has a new owner,
		// Done is that owner's, and an old sequence must not overwrite it.
		if d == abi.ShortSeq(seq) || !s.ours() || atomic.CompareAndSwapUint64(&a.Done, d, abi.ShortSeq(seq)) {
			return
		}
	}
}
