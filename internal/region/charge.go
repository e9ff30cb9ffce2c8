package region

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"

	"ration/internal/abi"
)

// relock is after how many changes an owner checks that it still has its lock, because any close of
// the file in this process drops it silently.
const relock = 4096

// Charge requests bytes of a device. They are granted exactly, rounded up to whole units, or
// refused with a *RefusedError. A charge is refused only after the memory of dead processes was
// taken back, and only if the bytes granted at that instant plus the request exceed the limit.
func (s *Slot) Charge(device int, kind abi.Kind, bytes uint64) error {
	if _, err := s.change(device, kind, bytes, charge); err != errNoRoom {
		return err
	}
	return s.refused(device, kind, bytes)
}

// Return returns bytes that were charged.
func (s *Slot) Return(device int, kind abi.Kind, bytes uint64) error {
	_, err := s.change(device, kind, bytes, giveBack)
	return err
}

type direction int

const (
	charge direction = iota
	giveBack
)

// errNoRoom is returned for a charge that did not fit at the first try.
var errNoRoom = errors.New("no room")

// change makes one change of the ledger and of the usage. With errNoRoom it returns the ledger word
// that did not allow it.
func (s *Slot) change(device int, kind abi.Kind, bytes uint64, dir direction) (_ abi.LedgerWord, err error) {
	if uint(device) >= abi.Devices || uint(kind) >= uint(abi.Kinds) {
		return 0, fmt.Errorf("device %d, kind %d: %w (a region has devices 0 to %d)", device, kind, ErrDevice, abi.Devices-1)
	}
	units, fits := abi.UnitsFor(bytes)
	if units == 0 {
		return 0, nil
	}
	r := s.r
	defer r.guard(&err, debug.SetPanicOnFault(true))
	if err := r.whole(); err != nil {
		return 0, err
	}
	l := r.ledger(device)
	if !fits {
		return l.word(), errNoRoom
	}
	var limit *uint64
	delta := int64(units)
	switch dir {
	case charge:
		limit = &r.limits.Device[device].Memory
	case giveBack:
		delta = -delta
		if err := s.keepLastPeak(device); err != nil {
			return 0, err
		}
	}
	w, err := s.changeInTurn(device, kind, delta, limit)
	point(abi.TurnLeft)
	if err != nil {
		return w, err
	}
	if peak := atomic.LoadUint64(&l.device.Peak); delta > 0 && w.Units()+units > peak+peak/abi.PeakStep {
		if err := s.keepPeak(device, w.Units()+units); err != nil {
			return 0, err
		}
	}
	return 0, r.whole() // also checks that the file was not cut short meanwhile
}

// changeInTurn makes one change. The caller has the account's turn.
func (s *Slot) changeInTurn(device int, kind abi.Kind, delta int64, limit *uint64) (abi.LedgerWord, error) {
	// Do this here and not at the claim, because it checks every process.
	if !s.r.former.Load() {
		s.r.reapFormerSelf()
		s.r.former.Store(true)
	}
	t, a := s.take(device)
	defer t.Unlock() // also after a fault, if the file was cut short and a page of it is gone
	defer s.endTurn()
	if err := s.usable(t, kind, delta); err != nil {
		return 0, err
	}
	s.enter(t, a)
	point(abi.TurnTaken)
	w, what := s.changeLedger(device, delta, limit)
	switch {
	case what == evicted:
		return 0, s.evicted()
	case what == noRoom && delta < 0:
		return 0, s.r.damaged()
	case what == noRoom:
		return w, errNoRoom
	}
	if t.put(a, kind, delta*abi.Unit)%relock == 0 {
		_, _ = s.r.alive.lock(s.index)
	}
	return w, nil
}

// take takes the turn of the slot's account on a device. While the job sleeps it waits.
func (s *Slot) take(device int) (*turn, *abi.Account) {
	// Before the lock: if the file was cut short, even this faults (the compiler accesses the
	// mapping for a nil check), and the caller has not deferred the unlock yet.
	a := &s.r.m.Accounts[device][s.index]
	t := &s.turns[device]
	for !s.beginTurn() {
		s.r.waitAwake()
	}
	t.Lock()
	return t, a
}

// enter makes the account this slot's, before its first change there. Doing so at attach would cost
// a page for every device.
func (s *Slot) enter(t *turn, a *abi.Account) {
	if t.entered && atomic.LoadUint64(&a.Gen) == s.status.Gen() {
		return
	}
	s.refresh(a, abi.Used(atomic.LoadUint64(&a.Used)).Seq())
	t.enter(a, s.status.Gen())
}

// usable reports whether the change is allowed: the slot is ours, and holds as much as is returned.
func (s *Slot) usable(t *turn, kind abi.Kind, delta int64) error {
	if s.left.Load() {
		return ErrClosed
	}
	if !s.ours() {
		return s.evicted()
	}
	if held := t.usage.Kind[kind]; delta < 0 && uint64(-delta)*abi.Unit > held {
		return fmt.Errorf("returning %d bytes of %v where %d are held: %w", -delta*abi.Unit, kind, held, ErrNotHeld)
	}
	return nil
}

// keepLastPeak records a device's peak before memory of it is returned.
func (s *Slot) keepLastPeak(device int) error {
	l := s.r.ledger(device)
	if held := l.word().Units(); held > atomic.LoadUint64(&l.device.Peak) {
		return s.keepPeak(device, held)
	}
	return nil
}

// keepPeak records the most that was ever granted at once. It is only for display: a crash before
// it loses a peak that no process saw. The memory of dead processes is not part of a peak, so it is
// returned before a new peak is written. That needs a query about each other process that holds
// memory of the device. So while a job grows, the peak is written in steps of abi.PeakStep, and its
// last part before memory is returned.
func (s *Slot) keepPeak(device int, units uint64) error {
	l := s.r.ledger(device)
	freed, err := s.r.reapDevice(device, s.index)
	if err != nil {
		return err
	}
	if freed > 0 {
		units = min(units, l.word().Units())
	}
	for {
		peak := atomic.LoadUint64(&l.device.Peak)
		if units <= peak || atomic.CompareAndSwapUint64(&l.device.Peak, peak, units) {
			return nil
		}
	}
}

// refused handles a charge that did not fit: it returns the memory of dead processes, tries
// again as long as that helped, and then records the refusal.
func (s *Slot) refused(device int, kind abi.Kind, bytes uint64) error {
	for {
		freed, err := s.r.reapDevice(device, s.index)
		if err != nil {
			return err
		}
		w, err := s.change(device, kind, bytes, charge)
		if err != errNoRoom {
			return err
		}
		if freed == 0 {
			return s.r.refuse(s.index, device, bytes, w)
		}
	}
}
