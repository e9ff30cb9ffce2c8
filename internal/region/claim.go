package region

import (
	"fmt"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"

	"ration/internal/abi"
)

// Slot is this process's place in a region. It is safe for concurrent use.
type Slot struct {
	r      *Region
	index  int
	status abi.Status // the slot is ours while Status in the region has this value
	left   atomic.Bool
	turns  [abi.Devices]turn
}

// Claim takes a free slot. If there is none, it frees those of dead processes. name is for display.
func (r *Region) Claim(name string) (_ *Slot, err error) {
	if !r.writable {
		return nil, fmt.Errorf("region %s: %w", r.path, ErrReadOnly)
	}
	defer r.guard(&err, debug.SetPanicOnFault(true))
	if err := r.whole(); err != nil {
		return nil, err
	}
	s, locked, err := r.claimFree(name)
	if s == nil && err == nil {
		_, _ = r.Reap()
		s, locked, err = r.claimFree(name)
	}
	if s == nil && err == nil && len(locked) > 0 {
		by := ""
		if pid := r.alive.blocker(locked[0]); pid > 0 {
			by = fmt.Sprintf(": pid %d", pid)
		}
		return nil, fmt.Errorf("region %s: %w: %d are free, and locked by a process that has not joined the job%s (end it)", r.path, ErrLocked, len(locked), by)
	}
	if s == nil && err == nil {
		err = fmt.Errorf("region %s: %w: %d processes have one (raise the number of jobs, not of processes in one)", r.path, ErrFull, abi.FenceSlot)
	}
	return s, err
}

// claimFree finds a free slot, first in a small window, so that scans of the used slots stay short,
// then in larger windows. Concurrent processes start at different places. If it finds none, locked
// has the free slots that another process has locked.
func (r *Region) claimFree(name string) (_ *Slot, locked []int, _ error) {
	if r.file != nil {
		r.file.claim.Lock()
		defer r.file.claim.Unlock()
	}
	ticket := atomic.AddUint64(&r.m.Header.Ticket, 1) - 1
	for window := uint64(abi.ClaimWindow); window <= abi.Slots; window *= 2 {
		locked = locked[:0]
		for n := range window {
			slot := int((ticket + n) % window)
			st := r.lookToClaim(slot)
			if st.State() != abi.SlotFree || slot == abi.FenceSlot {
				continue
			}
			free, err := r.alive.lock(slot)
			if err != nil {
				return nil, nil, err
			}
			if !free {
				// A process is about to claim it, or is leaving it; or a process has locked a slot
				// that it does not use.
				locked = append(locked, slot)
				continue
			}
			if r.alive.kept(slot) { // by a process that left and is ending, or by its fork children
				r.alive.unlock(slot)
				continue
			}
			mine := abi.MakeStatus(st.Gen()+1, abi.SlotJoining)
			r.hold(slot, mine.Gen())
			r.raiseHigh(slot)
			point(abi.ClaimLocked)
			if !atomic.CompareAndSwapUint64(&r.m.Status[slot], uint64(st), uint64(mine)) {
				r.letGo(slot, mine.Gen())
				r.alive.unlock(slot)
				continue
			}
			if s := r.join(slot, mine.Gen(), name); s != nil {
				return s, nil, nil
			}
		}
	}
	return nil, locked, nil
}

// lookToClaim returns a slot's status. It frees the slot of a process that announced its exit and
// has ended, so that a job which starts many processes needs few slots.
func (r *Region) lookToClaim(slot int) abi.Status {
	st := abi.Status(atomic.LoadUint64(&r.m.Status[slot]))
	if st.State() == abi.SlotActive && r.left(slot, st) && r.reapSlot(slot) {
		st = abi.Status(atomic.LoadUint64(&r.m.Status[slot]))
	}
	return st
}

// raiseHigh makes sure that scans include a slot, before it is claimed.
func (r *Region) raiseHigh(slot int) {
	for {
		high := atomic.LoadUint64(&r.m.Header.HighWater)
		if high > uint64(slot) || atomic.CompareAndSwapUint64(&r.m.Header.HighWater, high, uint64(slot)+1) {
			return
		}
	}
}

// join fills in a claimed slot and shows it to readers. It returns nil if the slot was taken away
// because its lock was lost.
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
	atomic.StoreUint64(&entry.Turns, uint64(abi.MakeTurns(gen, 0)))
	atomic.StoreUint64(&entry.Cannot, 0)
	atomic.StoreUint64(&entry.Lane, uint64(abi.MakeLane(gen, 0, 0, abi.LaneNone)))
	storeName(entry, name)
	point(abi.ClaimFilled)
	joining, active := abi.MakeStatus(gen, abi.SlotJoining), abi.MakeStatus(gen, abi.SlotActive)
	// Release: a reader that sees the slot as active also sees all of the above.
	if !atomic.CompareAndSwapUint64(&r.m.Status[slot], uint64(joining), uint64(active)) {
		r.letGo(slot, gen)
		return nil
	}
	point(abi.ClaimActive)
	atomic.AddUint64(&r.m.Header.Counters.Claims, 1)
	if r.role == FastPath {
		atomic.AddUint64(&r.m.Header.Counters.Fast, 1)
	}
	return &Slot{r: r, index: slot, status: active}
}

// hold records that this process has locked a slot, and the generation.
func (r *Region) hold(slot int, gen uint64) {
	if r.file != nil {
		r.file.held[slot].Store(gen)
	}
}

// letGo forgets a slot, unless this process has it again with another generation.
func (r *Region) letGo(slot int, gen uint64) {
	if r.file != nil {
		r.file.held[slot].CompareAndSwap(gen, 0)
	}
}

// Leave returns all bytes, which no driver holds, and frees the slot.
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
	defer r.letGo(s.index, s.status.Gen())
	if !s.ours() {
		return s.evicted()
	}
	for d := range abi.Devices {
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

// returnAll returns the slot's memory of a device. It uses the ledger, so that nothing can be left
// behind.
func (s *Slot) returnAll(device int) error {
	if err := s.keepLastPeak(device); err != nil {
		return err
	}
	t, a := s.take(device)
	defer t.Unlock()
	defer s.endTurn()
	if !t.entered {
		return nil
	}
	if units := abi.Used(atomic.LoadUint64(&a.Used)).Units(); units > 0 {
		switch _, what := s.changeLedger(device, -int64(units), nil); what {
		case evicted:
			return s.evicted()
		case noRoom:
			return s.r.damaged()
		}
	}
	t.clear(a)
	return nil
}

// Index returns the slot's number.
func (s *Slot) Index() int { return s.index }

// ours reports whether the slot still belongs to this process. An owner calls it after reading a
// word and before swapping it.
func (s *Slot) ours() bool {
	return abi.Status(atomic.LoadUint64(&s.r.m.Status[s.index])) == s.status
}

// evicted returns the error for an owner whose slot was taken away.
func (s *Slot) evicted() error {
	s.r.letGo(s.index, s.status.Gen())
	return fmt.Errorf("slot %d of region %s: %w (its lock was lost: did the program close all its files?)", s.index, s.r.path, ErrEvicted)
}

func storeName(entry *abi.Slot, name string) {
	var b [abi.NameLen]byte
	copy(b[:abi.NameLen-1], name)
	for i, w := range nameWords(&abi.Slot{Name: b}) {
		atomic.StoreUint64(&nameWords(entry)[i], w)
	}
}
