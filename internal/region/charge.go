package region

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"

	"ration/internal/abi"
)

// relock is how many turns pass before an owner makes sure that its lock is
// still there: any close of the file in this process drops it silently.
const relock = 4096

// Charge asks for bytes of a device. They are granted exactly, rounded up to
// whole units, or refused with a *RefusedError: after the bytes of dead processes
// have been taken back, and only if the bytes granted at that instant plus these
// would pass the limit.
func (s *Slot) Charge(device int, kind abi.Kind, bytes uint64) error {
	if _, err := s.change(device, kind, bytes, charge); err != errNoRoom {
		return err
	}
	return s.refused(device, kind, bytes)
}

// Return gives back bytes that were charged.
func (s *Slot) Return(device int, kind abi.Kind, bytes uint64) error {
	_, err := s.change(device, kind, bytes, giveBack)
	return err
}

type direction int

const (
	charge direction = iota
	giveBack
)

// errNoRoom is a charge that did not fit at the first try.
var errNoRoom = errors.New("no room")

// change makes one change of the ledger and of the figures. With errNoRoom comes
// the word that stood in the way.
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
	return 0, r.whole() // nor was it cut short meanwhile
}

// changeInTurn makes one change, with the account's turn.
func (s *Slot) changeInTurn(device int, kind abi.Kind, delta int64, limit *uint64) (abi.LedgerWord, error) {
	// Here and not at the claim: it looks at every process there is.
	if !s.r.former.Load() {
		s.r.reapFormerSelf()
		s.r.former.Store(true)
	}
	t, a := s.take(device)
	defer t.Unlock() // also where the file is cut short, and a page of it gone
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

// take takes the turn of the slot's account on a device.
func (s *Slot) take(device int) (*turn, *abi.Account) {
	// Before the lock: where the file was cut short, even this faults (the compiler
	// touches the mapping to see that it is not nil), and the caller's defer is yet to come.
	a := &s.r.m.Accounts[device][s.index]
	t := &s.turns[device]
	t.Lock()
	return t, a
}

// enter makes the account this slot's, before its first change there. At attach
// that would cost a page for every device there is.
func (s *Slot) enter(t *turn, a *abi.Account) {
	if t.entered && atomic.LoadUint64(&a.Gen) == s.status.Gen() {
		return
	}
	s.refresh(a, abi.Used(atomic.LoadUint64(&a.Used)).Seq())
	t.enter(a, s.status.Gen())
}

// usable says whether the change may be made at all: the slot is ours, and holds
// what is to be returned.
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

// keepLastPeak writes a device's peak, before something of it is returned.
func (s *Slot) keepLastPeak(device int) error {
	l := s.r.ledger(device)
	if held := l.word().Units(); held > atomic.LoadUint64(&l.device.Peak) {
		return s.keepPeak(device, held)
	}
	return nil
}

// keepPeak keeps the most that was ever granted at once. It is for people: a crash
// before it loses a peak that no process saw. What dead processes held is no part of
// it: before a new peak is written it is given back. That asks the kernel about each
// other process that holds something of the device. So while a job grows, a peak is
// written at steps of abi.PeakStep, and its last part before something is returned.
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

// refused is what follows a charge that did not fit: take back what the dead
// hold, try again for as long as that brought something, and then write the
// refusal down.
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
