package region

import (
	"bytes"
	"math"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"ration/internal/abi"
	"ration/internal/termtext"
)

// Process is the owner of a slot.
type Process struct {
	Slot    int
	PID     int // in its own PID namespace
	HostPID int // on the host; 0 if unknown
	Seen    int // as seen by this process, confirmed by the kernel if this process is not a member of the job; 0 if not visible
	Named   int // the PID that the kernel reports for its lock, unconfirmed: it may have been reused
	UID     int
	Name    string
	Joined  int64  // Unix nanoseconds
	Dead    bool   // ended; the next process that needs its memory takes it, unless it is lent
	Lent    bool   // dead; there may be a descriptor of its memory, which stays charged
	Left    bool   // it has announced its exit, so its end is not a death
	Cannot  uint64 // why it cannot sleep: bits from abi.CannotManaged on
	Ending  bool   // it is ending, or its fork children have its driver files; it still holds its memory
}

// Holding is a process's use of one device, read consistently.
type Holding struct {
	Slot       int
	Total      uint64
	Kind       [abi.Kinds]uint64
	Peak       uint64
	Exported   uint64 // of Total: memory that may outlive the process, as other processes may hold it
	Aside      uint64 // bytes that the driver has put aside, because the job sleeps; they are in no other field
	BestEffort bool   // it changed during every try to read it
}

// possible reports whether these values are possible.
func (h *Holding) possible() bool {
	most := max(h.Total, h.Peak)
	for _, kind := range h.Kind {
		most = max(most, kind)
	}
	return most <= maxBytes
}

// Usage returns how much of a device is granted now, and the highest value so far.
func (r *Region) Usage(device int) (used, peak uint64, err error) {
	both, err := lookAt(r, device, func() [2]uint64 { return [2]uint64{r.Used(device), r.Peak(device)} })
	return both[0], both[1], err
}

// Driver returns the driver's count of a device for the process in slot, as recorded by that
// process; 0 if unknown or impossible.
func (r *Region) Driver(device, slot int) (uint64, error) {
	return lookAt(r, device, func() uint64 {
		a := r.ownAccount(device, slot)
		if a == nil {
			return 0
		}
		most := uint64(maxBytes)
		if total := atomic.LoadUint64(&r.limits.Device[device].Total); total != 0 {
			most = min(most, total) // a process cannot have more than the device
		}
		return possible(atomic.LoadUint64(&a.Driver), most)
	})
}

// Used returns how much of a device is granted now, with one atomic load. The caller must trust
// that the file is not cut short; Usage need not.
func (r *Region) Used(device int) uint64 {
	return abi.LedgerWord(atomic.LoadUint64(&r.m.Devices[device].LedgerWord)).Units() * abi.Unit
}

// Refused returns the number of refused requests for a device.
func (r *Region) Refused(device int) uint64 {
	return possible(atomic.LoadUint64(&r.m.Devices[device].Refused), math.MaxInt64)
}

// Peak returns the most that was ever granted of a device at once. As for Used, the caller must
// trust the file.
func (r *Region) Peak(device int) uint64 {
	return possible(atomic.LoadUint64(&r.m.Devices[device].Peak), abi.MaxUnits) * abi.Unit
}

// A job can write any value. Impossible numbers are shown as 0.

// possible returns n, or 0 if it is larger than most.
func possible(n, most uint64) uint64 {
	if n > most {
		return 0
	}
	return n
}

// timeOf returns a time in Unix nanoseconds.
func timeOf(word uint64) int64 { return int64(possible(word, math.MaxInt64)) }

func pidOf(word uint64) int { return int(possible(word, math.MaxInt32)) }

// uidOf returns -1 for a word that is not a UID, because 0 would be root.
func uidOf(word uint64) int {
	if word > math.MaxUint32 {
		return -1
	}
	return int(word)
}

// maxBytes is the most that can be granted of a device.
const maxBytes = abi.MaxUnits * abi.Unit

// Holdings appends to buf how much of a device each process holds. Each holding is consistent; they
// are read one after the other.
func (r *Region) Holdings(device int, buf []Holding) (_ []Holding, err error) {
	if err := checkDevice(device); err != nil {
		return buf, err
	}
	defer r.guard(&err, debug.SetPanicOnFault(true))
	if err := r.whole(); err != nil {
		return buf, err
	}
	accounts := &r.m.Accounts[device]
	asleep := abi.Sleep(atomic.LoadUint64(&r.m.Header.Sleep)).State() == abi.Asleep
	var reads, retries, best uint64
	for slot := range r.high() {
		status := &r.m.Status[slot]
		// Acquire: pairs with the release in join.
		st := atomic.LoadUint64(status)
		if !abi.Status(st).Holds() {
			continue
		}
		a := &accounts[slot]
		var f abi.Usage
		n, peak := read(a, abi.Status(st).Gen(), &f)
		if abi.Status(st).State() == abi.SlotLent { // the usage is as it was when the owner died
			f = abi.Usage{Total: abi.Used(atomic.LoadUint64(&a.Used)).Units() * abi.Unit}
			f.Kind[abi.Data] = f.Total
		}
		gaveUp := n == abi.ReadTries || r.torn[copiedAccount{device, slot}]
		h := Holding{Slot: slot, Total: f.Total, Kind: f.Kind, Peak: peak, BestEffort: gaveUp}
		if atomic.LoadUint64(&a.Gen) == abi.Status(st).Gen() { // the owner has written its words
			h.Exported = min(h.Total, abi.Exported(atomic.LoadUint64(&a.Exported)).Units()*abi.Unit)
		}
		if !h.possible() {
			h = Holding{Slot: slot, BestEffort: true}
		}
		if asleep && abi.Status(st).State() == abi.SlotActive {
			h.Aside, h.Total, h.Kind = h.Total, 0, [abi.Kinds]uint64{}
		}
		reads++
		retries += uint64(n)
		if gaveUp {
			best++
		}
		if atomic.LoadUint64(status) == st {
			buf = append(buf, h)
		}
	}
	r.tally.add(r, reads, retries, best)
	return buf, r.whole() // also checks that the file was not cut short meanwhile
}

// Processes lists the processes that have a slot. On the host it also records the host PIDs that
// the processes themselves cannot know.
func (r *Region) Processes() (out []Process, err error) {
	defer r.guard(&err, debug.SetPanicOnFault(true))
	if err := r.whole(); err != nil {
		return nil, err
	}
	if k, is := r.alive.(lockOnly); is {
		k.holders.begin()
	}
	for slot := range r.high() {
		st := atomic.LoadUint64(&r.m.Status[slot])
		if !abi.Status(st).Holds() {
			continue
		}
		e := &r.m.Slots[slot]
		p := Process{
			Slot:   slot,
			PID:    pidOf(atomic.LoadUint64(&e.PID)),
			Seen:   r.seenPID(slot, e),
			UID:    uidOf(atomic.LoadUint64(&e.UID)),
			Joined: timeOf(atomic.LoadUint64(&e.Joined)),
			Name:   loadName(e),
			Dead:   abi.Status(st).State() != abi.SlotActive || r.alive.dead(slot, e, abi.Status(st)) != 0,
			Lent:   abi.Status(st).State() == abi.SlotLent,
			Left:   r.left(slot, abi.Status(st)),
			Cannot: atomic.LoadUint64(&e.Cannot),
		}
		p.Ending = !p.Dead && r.alive.outlived(slot, abi.Status(st))
		p.Named = r.namedPID(slot, p.Seen)
		p.HostPID = r.hostPID(abi.Status(st), e, p.Seen)
		if atomic.LoadUint64(&r.m.Status[slot]) == st {
			out = append(out, p)
		}
	}
	return out, r.whole()
}

// seenPID returns the PID of a slot's owner, as seen by this process. The kernel reports the holder
// of a lock with the PID that the asking process sees. If that gives no PID, a member of the job uses the one
// that the owner recorded.
func (r *Region) seenPID(slot int, e *abi.Slot) int {
	if r.torn == nil && atomic.LoadUint64(&e.PIDNS) == self().pidns {
		return int(atomic.LoadUint64(&e.PID))
	}
	return r.LockedBy(slot)
}

// namedPID returns the PID that the kernel reports for a slot's lock, if it could not be confirmed
// and this process is not a member of the job.
func (r *Region) namedPID(slot, seen int) int {
	k, is := r.alive.(lockOnly)
	if !is || seen != 0 || k.f.held[slot].Load() != 0 {
		return 0
	}
	_, pid := k.named(slot)
	return pid
}

// hostPID returns the host PID of a slot's owner, as recorded. On the host it takes the PID as
// seen, and records it for all. The generation in the word prevents that a PID which was found late
// counts for the next owner.
func (r *Region) hostPID(st abi.Status, e *abi.Slot, seen int) int {
	known := abi.HostPID(atomic.LoadUint64(&e.HostPID))
	if r.torn != nil && OnHost() && seen != 0 {
		return seen // from the kernel, not from the slot
	}
	if known.PID() != 0 || !OnHost() || seen == 0 {
		return pidOf(uint64(known.PID()))
	}
	if r.writable {
		atomic.CompareAndSwapUint64(&e.HostPID, uint64(abi.MakeHostPID(st.Gen(), 0)), uint64(abi.MakeHostPID(st.Gen(), seen)))
	}
	return seen
}

func loadName(e *abi.Slot) string {
	var copied abi.Slot
	for i := range nameWords(e) {
		nameWords(&copied)[i] = atomic.LoadUint64(&nameWords(e)[i])
	}
	return printable(copied.Name[:])
}

// printable returns a name up to its zero byte. Its owner chose it, and it will be printed.
func printable(name []byte) string {
	name, _, _ = bytes.Cut(name, []byte{0})
	return strings.ReplaceAll(termtext.Printable(string(name)), string(utf8.RuneError), "?")
}

// OwnReads returns the reads of this reader that are not in the region's counters: those of a
// reader that may not write there.
func (r *Region) OwnReads() (reads, retries, best uint64) {
	return r.tally.reads.Load(), r.tally.retries.Load(), r.tally.best.Load()
}

// Counters returns totals over the life of the region. A read-only reader's own counts are added, as the region
// does not hold them.
func (r *Region) Counters() (c abi.Counters, err error) {
	defer r.guard(&err, debug.SetPanicOnFault(true))
	if err := r.whole(); err != nil {
		return c, err
	}
	r.flush()
	from := &r.m.Header.Counters
	return abi.Counters{
		Reads:      possible(atomic.LoadUint64(&from.Reads), math.MaxInt64) + r.tally.reads.Load(),
		Retries:    possible(atomic.LoadUint64(&from.Retries), math.MaxInt64) + r.tally.retries.Load(),
		BestEffort: possible(atomic.LoadUint64(&from.BestEffort), math.MaxInt64) + r.tally.best.Load(),
		Reaped:     possible(atomic.LoadUint64(&from.Reaped), math.MaxInt64),
		Refused:    possible(atomic.LoadUint64(&from.Refused), math.MaxInt64),
		Helped:     possible(atomic.LoadUint64(&from.Helped), math.MaxInt64),
		Claims:     possible(atomic.LoadUint64(&from.Claims), math.MaxInt64),
		Fast:       possible(atomic.LoadUint64(&from.Fast), math.MaxInt64),
		Damaged:    possible(atomic.LoadUint64(&from.Damaged), math.MaxInt64),
	}, nil
}

// tally collects a reader's counts, so that a read need not write a word that all readers share.
type tally struct{ reads, retries, best atomic.Uint64 }

const tallyBatch = 4096

func (t *tally) add(r *Region, reads, retries, best uint64) {
	if retries|best != 0 {
		t.retries.Add(retries)
		t.best.Add(best)
	}
	if t.reads.Add(reads) >= tallyBatch {
		r.flush()
	}
}

func (r *Region) flush() {
	if !r.writable {
		return
	}
	to := &r.m.Header.Counters
	for _, c := range []struct {
		from *atomic.Uint64
		to   *uint64
	}{{&r.tally.reads, &to.Reads}, {&r.tally.retries, &to.Retries}, {&r.tally.best, &to.BestEffort}} {
		if n := c.from.Swap(0); n > 0 {
			atomic.AddUint64(c.to, n)
		}
	}
}
