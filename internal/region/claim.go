package region

import (
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"ration/internal/abi"
)

// Slot is this process's place in a region. It is safe for use by several
// goroutines.
type Slot struct {
	r      *Region
	index  int
	status abi.Status // ours while Status in the region is this
	left   atomic.Bool

	entering sync.Mutex
	entered  atomic.Uint32 // a bit for each device whose account is ours
}

// Claim takes a free slot, giving back those of dead processes if there is no
// other. name is shown to people.
func (r *Region) Claim(name string) (_ *Slot, err error) {
	if !r.writable {
		return nil, fmt.Errorf("region %s: %w", r.path, ErrReadOnly)
	}
	defer r.guard(&err, debug.SetPanicOnFault(true))
	if err := r.whole(); err != nil {
		return nil, err
	}
	if err := r.reapFormerSelf(); err != nil {
		return nil, err
	}
	s, err := r.claimFree(name)
	if s == nil && err == nil {
		if _, err = r.reapAll(); err == nil {
			s, err = r.claimFree(name)
		}
	}
	if s == nil && err == nil {
		err = fmt.Errorf("region %s: %w: %d processes have one (raise the number of jobs, not of processes in one)", r.path, ErrFull, abi.Slots)
	}
	return s, err
}

// claimFree looks for a free slot, first in a small window, so that a scan of
// the slots in use stays short, then in larger ones. Racing processes start at
// different places.
func (r *Region) claimFree(name string) (*Slot, error) {
	if r.file != nil {
		r.file.claim.Lock()
		defer r.file.claim.Unlock()
	}
	ticket := atomic.AddUint64(&r.m.Header.Ticket, 1) - 1
	for window := uint64(abi.ClaimWindow); window <= abi.Slots; window *= 2 {
		for n := range window {
			slot := int((ticket + n) % window)
			st := abi.Status(atomic.LoadUint64(&r.m.Status[slot]))
			if st.State() != abi.SlotFree {
				continue
			}
			locked, err := r.alive.lock(slot)
			if err != nil {
				return nil, err
			}
			if !locked {
				continue // somebody is about to claim it, or about to have left it
			}
			r.hold(slot, true)
			r.raiseHigh(slot)
			point(abi.ClaimLocked)
			mine := abi.MakeStatus(st.Gen()+1, abi.SlotJoining)
			if !atomic.CompareAndSwapUint64(&r.m.Status[slot], uint64(st), uint64(mine)) {
				r.hold(slot, false)
				r.alive.unlock(slot)
				continue
			}
			if s := r.join(slot, mine.Gen(), name); s != nil {
				return s, nil
			}
		}
	}
	return nil, nil
}

// raiseHigh makes sure that a slot is looked at, before it is claimed.
func (r *Region) raiseHigh(slot int) {
	for {
		high := atomic.LoadUint64(&r.m.Header.High)
		if high > uint64(slot) || atomic.CompareAndSwapUint64(&r.m.Header.High, high, uint64(slot)+1) {
			return
		}
	}
}

// join fills in a claimed slot and shows it to readers. It is nil where the slot
// was taken away meanwhile, its lock having been lost.
func (r *Region) join(slot int, gen uint64, name string) *Slot {
	point(abi.ClaimJoining)
	me := self()
	entry := &r.m.Slots[slot]
	atomic.StoreUint64(&entry.PID, uint64(me.pid))
	atomic.StoreUint64(&entry.Start, me.start)
	atomic.StoreUint64(&entry.PIDNS, me.pidns)
	host := 0
	if OnHost() {
		host = me.pid
	}
	atomic.StoreUint64(&entry.HostPID, uint64(abi.MakeHostPID(gen, host)))
	atomic.StoreUint64(&entry.UID, uint64(os.Geteuid()))
	atomic.StoreUint64(&entry.Joined, uint64(time.Now().UnixNano()))
	storeName(entry, name)
	point(abi.ClaimFilled)
	joining, active := abi.MakeStatus(gen, abi.SlotJoining), abi.MakeStatus(gen, abi.SlotActive)
	// Release: a reader that finds the slot active finds all of the above.
	if !atomic.CompareAndSwapUint64(&r.m.Status[slot], uint64(joining), uint64(active)) {
		r.hold(slot, false)
		return nil
	}
	point(abi.ClaimActive)
	atomic.AddUint64(&r.m.Header.Counters.Claims, 1)
	if r.role == FastPath {
		atomic.AddUint64(&r.m.Header.Counters.Fast, 1)
	}
	return &Slot{r: r, index: slot, status: active}
}

// enter makes the account of a device this slot's, before its first change there.
// At attach that would cost a page for every device there is.
func (s *Slot) enter(device int) {
	s.entering.Lock()
	defer s.entering.Unlock()
	a := &s.r.m.Accounts[device][s.index]
	if gen := s.status.Gen(); atomic.LoadUint64(&a.Gen) != gen {
		s.r.ledger(device).refresh(s.index, abi.Used(atomic.LoadUint64(&a.Used)).Seq())
		enter(a, gen)
	}
	s.entered.Or(1 << device)
}

// hold remembers which slots are locked by this process.
func (r *Region) hold(slot int, held bool) {
	if r.file != nil {
		r.file.held[slot].Store(held)
	}
}

// Leave returns all bytes and frees the slot.
func (s *Slot) Leave() (err error) {
	if s.left.Swap(true) {
		return ErrClosed
	}
	r := s.r
	defer r.guard(&err, debug.SetPanicOnFault(true))
	if err := r.whole(); err != nil {
		return err
	}
	if r.file != nil {
		r.file.claim.Lock()
		defer r.file.claim.Unlock()
	}
	defer r.hold(s.index, false)
	if err := s.owned(); err != nil {
		return err
	}
	for d := range abi.Devices {
		if s.entered.Load()&(1<<d) == 0 {
			continue
		}
		if err := s.returnAll(d); err != nil {
			return err
		}
	}
	point(abi.LeaveReturned)
	free := abi.MakeStatus(s.status.Gen(), abi.SlotFree)
	atomic.CompareAndSwapUint64(&r.m.Status[s.index], uint64(s.status), uint64(free))
	point(abi.LeaveFreed)
	r.alive.unlock(s.index)
	point(abi.LeaveUnlocked)
	return nil
}

// returnAll gives back what the slot holds of a device, kind by kind.
func (s *Slot) returnAll(device int) error {
	a := &s.r.m.Accounts[device][s.index]
	for k := range abi.Kinds {
		turn, ok := take(a, &s.r.broken)
		if !ok {
			return s.r.damaged()
		}
		bytes := a.A.Kind[k]
		if bytes == 0 {
			leave(a, turn)
			continue
		}
		delta := -int64(bytes / abi.Unit)
		if _, ok := s.r.ledger(device).change(s.index, delta, nil); !ok {
			leave(a, turn)
			return s.r.damaged()
		}
		put(a, turn, k, -int64(bytes))
	}
	return nil
}

// Index is the slot's number.
func (s *Slot) Index() int { return s.index }

// owned says whether the slot is still this process's.
func (s *Slot) owned() error {
	if abi.Status(atomic.LoadUint64(&s.r.m.Status[s.index])) == s.status {
		return nil
	}
	s.r.hold(s.index, false)
	return fmt.Errorf("slot %d of region %s: %w (its lock was lost: did the program close all its files?)", s.index, s.r.path, ErrEvicted)
}

func storeName(entry *abi.Slot, name string) {
	var b [abi.NameLen]byte
	copy(b[:abi.NameLen-1], name)
	for i, w := range nameWords(&abi.Slot{Name: b}) {
		atomic.StoreUint64(&nameWords(entry)[i], w)
	}
}
