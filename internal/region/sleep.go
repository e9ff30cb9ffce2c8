package region

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/abi"
)

// A job that sleeps: internal/sleep/PROTOCOL.md. While the word Header.Sleep is not awake, no owner changes an
// account, and the process that has the sleep lock changes them in the owners' place.

// wantAgain is how often a thread that waits asks again for the job to be woken: the process that waits for
// that may have been started after the last time.
const wantAgain = time.Second

// waitAwake asks for the job to be woken, and returns when it is awake.
func (r *Region) waitAwake() {
	sleep, wanted := &r.m.Header.Sleep, &r.m.Header.Wanted
	for {
		s := atomic.LoadUint64(sleep)
		if abi.Sleep(s).State() == abi.Awake {
			return
		}
		atomic.AddUint64(wanted, 1)
		futexWake(wanted)
		futexWait(sleep, s, wantAgain)
	}
}

// beginTurn counts a thread that is about to change an account. It returns false if the job is not awake. If
// the slot has another owner, it counts nothing, and the change will find that out.
func (s *Slot) beginTurn() bool {
	turns := &s.r.m.Slots[s.index].Turns
	gen := abi.MakeTurns(s.status.Gen(), 0).Gen()
	for {
		t := abi.Turns(atomic.LoadUint64(turns))
		if t.Gen() != gen {
			return true
		}
		if atomic.CompareAndSwapUint64(turns, uint64(t), uint64(t)+1) {
			break
		}
	}
	// Full order, after the swap: the process that puts the job to sleep changes the word first, and then reads
	// Turns. One of the two sees the other. Pairs with Quiet.
	if abi.Sleep(atomic.LoadUint64(&s.r.m.Header.Sleep)).State() == abi.Awake {
		return true
	}
	s.endTurn()
	return false
}

func (s *Slot) endTurn() {
	turns := &s.r.m.Slots[s.index].Turns
	gen := abi.MakeTurns(s.status.Gen(), 0).Gen()
	for {
		t := abi.Turns(atomic.LoadUint64(turns))
		if t.Gen() != gen || t.Count() == 0 || atomic.CompareAndSwapUint64(turns, uint64(t), uint64(t)-1) {
			return
		}
	}
}

// ErrSleepBusy is returned by LockSleep if another process has the lock.
var ErrSleepBusy = errors.New("another process is putting the job to sleep or waking it")

// LockSleep takes the job's sleep lock, without which no process may call the functions below. The kernel
// drops it when the returned function is called, or this process ends. With a timeout it waits for so long.
func (r *Region) LockSleep(timeout time.Duration) (unlock func(), err error) {
	fd, err := r.file.descriptor()
	if err != nil {
		return nil, err
	}
	// An open file of its own: its lock belongs to nothing else. A flock does not meet the record locks of slots.
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("locking %s: %w", r.path, err)
	}
	for end, pause := time.Now().Add(timeout), time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return func() { _ = f.Close() }, nil
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EWOULDBLOCK):
			_ = f.Close()
			return nil, fmt.Errorf("locking %s: %w", r.path, err)
		case time.Now().After(end):
			_ = f.Close()
			return nil, fmt.Errorf("region %s: %w (try again later)", r.path, ErrSleepBusy)
		}
		time.Sleep(pause)
	}
}

// Sleep returns whether the job sleeps.
func (r *Region) Sleep() (abi.Sleep, error) {
	return look(r, func() abi.Sleep { return abi.Sleep(atomic.LoadUint64(&r.m.Header.Sleep)) })
}

// SleepTime returns when the state of Sleep last changed, in Unix nanoseconds; 0 if it never has. A caller reads Sleep
// first.
func (r *Region) SleepTime() (int64, error) {
	return look(r, func() int64 { return int64(atomic.LoadUint64(&r.m.Header.Slept)) })
}

// SetSleep changes the state, and wakes those that wait for a change. A job that begins to fall asleep is counted.
func (r *Region) SetSleep(state int, manual bool) error {
	_, err := look(r, func() bool {
		s := abi.Sleep(atomic.LoadUint64(&r.m.Header.Sleep))
		count := s.Count()
		if state == abi.Falling {
			count++
		}
		// Before the state: a reader that sees the new state does not see an older time. Pairs with SleepTime.
		atomic.StoreUint64(&r.m.Header.Slept, uint64(time.Now().UnixNano()))
		atomic.StoreUint64(&r.m.Header.Sleep, uint64(abi.MakeSleep(state, manual, count)))
		futexWake(&r.m.Header.Sleep)
		return true
	})
	return err
}

// Wanted returns how often a thread has asked for the job to be woken.
func (r *Region) Wanted() (uint64, error) {
	return look(r, func() uint64 { return atomic.LoadUint64(&r.m.Header.Wanted) })
}

// WaitWanted returns when Wanted is not before any more, or after most.
func (r *Region) WaitWanted(before uint64, most time.Duration) error {
	_, err := look(r, func() bool { futexWait(&r.m.Header.Wanted, before, most); return true })
	return err
}

// Sleeper is a living process of a job, for the process that has the sleep lock.
type Sleeper struct {
	Slot   int
	PID    int // as this process sees it; 0 if it does not
	Host   int // on the host; 0 if unknown
	Name   string
	Cannot uint64              // bits from abi.CannotManaged on
	Shown  [abi.Devices]uint64 // bytes that it holds, awake or asleep
	Booked [abi.Devices]uint64 // bytes that the ledger has for it; the rest of Shown is aside

	status abi.Status
}

// Shows returns the bytes of all devices.
func (s *Sleeper) Shows() (sum uint64) {
	for _, bytes := range s.Shown {
		sum += bytes
	}
	return sum
}

// Sleepers returns the living processes, after it has returned the memory of dead ones. Processes that are
// ending are left out.
func (r *Region) Sleepers() (out []Sleeper, err error) {
	if _, err := r.Reap(); err != nil {
		return nil, err
	}
	defer r.guard(&err, debug.SetPanicOnFault(true))
	pid := r.seenPID
	if os.Geteuid() == 0 {
		// For root the driver moves the memory of any process, and the slots are the word of the job's processes.
		confirmed := lockOnly{kernel{r.file}, &holders{f: r.file}}
		confirmed.holders.reset()
		pid = func(slot int, _ *abi.Slot) int { return confirmed.holder(slot) }
	}
	for slot := range r.high() {
		st := abi.Status(atomic.LoadUint64(&r.m.Status[slot]))
		e := &r.m.Slots[slot]
		if st.State() != abi.SlotActive || r.left(slot, st) || r.alive.outlived(slot, st) {
			continue
		}
		s := Sleeper{Slot: slot, PID: pid(slot, e), Name: loadName(e), Cannot: atomic.LoadUint64(&e.Cannot), status: st}
		s.Host = r.hostPID(st, e, s.PID)
		for d := range abi.Devices {
			a := &r.m.Accounts[d][slot]
			var f abi.Usage
			read(a, st.Gen(), &f)
			s.Shown[d] = possible(f.Total, maxBytes)
			s.Booked[d] = abi.Used(atomic.LoadUint64(&a.Used)).Units() * abi.Unit
		}
		if abi.Status(atomic.LoadUint64(&r.m.Status[slot])) == st {
			out = append(out, s)
		}
	}
	return out, r.whole()
}

var cannotTexts = []struct {
	bit  uint64
	text string
}{
	{abi.CannotManaged, "has managed memory"},
	{abi.CannotExported, "shares memory with other processes"},
	{abi.CannotImported, "uses memory of another process"},
	{abi.CannotCapture, "is capturing a stream"},
	{abi.CannotMPS, "is a client of MPS"},
	{abi.CannotDriver, "has a driver that cannot put memory aside (it needs version 570 or later)"},
	{abi.CannotGroup, "works together with other devices or processes (multicast memory, as NCCL uses it)"},
	{abi.CannotUnknown, "may have memory that cannot be put aside"},
}

// CannotText says why a process cannot sleep, for Slot.Cannot; it is empty if it can.
func CannotText(bits uint64) string {
	var parts []string
	for _, c := range cannotTexts {
		if bits&c.bit != 0 {
			parts = append(parts, c.text)
			bits &^= c.bit
		}
	}
	if bits != 0 {
		parts = append(parts, "cannot, for a reason that this version of ration does not know")
	}
	return strings.Join(parts, ", and ")
}

// Quiet reports whether no thread of the process is changing an account. If the job is not awake, none will.
func (r *Region) Quiet(s *Sleeper) (bool, error) {
	return look(r, func() bool {
		return abi.Turns(atomic.LoadUint64(&r.m.Slots[s.Slot].Turns)).Count() == 0 || !r.lives(s)
	})
}

// lives reports whether the slot is still the process's.
func (r *Region) lives(s *Sleeper) bool {
	return abi.Status(atomic.LoadUint64(&r.m.Status[s.Slot])) == s.status
}

// Lives reports whether the process still has its slot.
func (r *Region) Lives(s *Sleeper) bool {
	lives, err := look(r, func() bool { return r.lives(s) })
	return err == nil && lives
}

// PutAside returns what the ledger has for a process on all devices. What its accounts show stays. It is
// idempotent. The job is asleep.
func (r *Region) PutAside(s *Sleeper) (err error) {
	return r.settleAll(s, 0)
}

// settleAll settles the accounts of a living process as a reaper does: the change that a process which had the
// sleep lock did not finish is booked or dropped, and all but keep units is returned.
func (r *Region) settleAll(s *Sleeper, keep uint64) (err error) {
	defer r.guard(&err, debug.SetPanicOnFault(true))
	for d := range abi.Devices {
		switch r.settle(d, s.Slot, s.status, keep) {
		case impossible:
			return r.damaged()
		case taken:
			if r.lives(s) {
				return fmt.Errorf("region %s: %w: a process keeps changing the account of slot %d", r.path, ErrDamaged, s.Slot)
			}
			return nil // a reaper returns the rest
		}
	}
	return r.whole()
}

// TakeBack charges what the accounts of a process show and the ledger does not have. It is idempotent. With a
// *RefusedError a part may be charged. The job is waking.
func (r *Region) TakeBack(s *Sleeper) (err error) {
	if err := r.settleAll(s, abi.MaxUnits); err != nil {
		return err
	}
	defer r.guard(&err, debug.SetPanicOnFault(true))
	owner := Slot{r: r, index: s.Slot, status: s.status}
	for d := range abi.Devices {
		shown, _ := abi.UnitsFor(s.Shown[d])
		used := abi.Used(atomic.LoadUint64(&r.m.Accounts[d][s.Slot].Used)).Units()
		if shown <= used {
			continue
		}
		limit := &r.limits.Device[d].Memory
		if w, what := owner.changeLedger(d, int64(shown-used), limit); what == noRoom {
			return &RefusedError{Refusal{Device: d, Slot: s.Slot, PID: s.PID, Asked: (shown - used) * abi.Unit, Held: w.Units() * abi.Unit, Limit: abi.Limit(atomic.LoadUint64(limit)).Bytes()}}
		}
	}
	return r.whole()
}
