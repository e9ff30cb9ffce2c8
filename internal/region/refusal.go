package region

import (
	"runtime/debug"
	"sort"
	"sync/atomic"
	"time"

	"ration/internal/abi"
)

// The rings of refusals and of deaths are for people. An entry is written between two values of its
// Seq. A writer that dies in between leaves Seq odd, and two writers in one entry (one of them was
// stopped for a whole round) break its checksum. Readers skip both. No process waits.

// refuse records a refusal in the ring and returns it as an error.
func (r *Region) refuse(slot, device int, bytes uint64, w abi.LedgerWord) (err error) {
	defer r.guard(&err, debug.SetPanicOnFault(true))
	out := Refusal{
		Time: time.Now().UnixNano(), Slot: slot, Device: device, PID: self().pid, Asked: bytes,
		Held:  w.Units() * abi.Unit,
		Limit: abi.Limit(atomic.LoadUint64(&r.limits.Device[device].Memory)).Ceiling() * abi.Unit,
	}
	out.Own, out.Top = r.holders(device, slot)

	atomic.AddUint64(&r.m.Header.Counters.Refused, 1)
	atomic.AddUint64(&r.m.Devices[device].Refused, 1)
	ticket := atomic.AddUint64(&r.m.Header.RefusalNext, 1) - 1
	point(abi.RefuseTicket)

	entry := abi.Refusal{
		Time: uint64(out.Time), Slot: uint32(slot), Device: uint32(device), PID: uint64(out.PID),
		Asked: out.Asked, Held: out.Held, Limit: out.Limit, Own: out.Own,
	}
	for i, h := range out.Top {
		entry.Top[i] = abi.Holder{PID: uint64(h.PID), Bytes: h.Bytes}
	}
	writeEntry(refusalWords(&r.m.Refusals[ticket%abi.Refusals])[:], refusalWords(&entry)[:], ticket)
	point(abi.RefuseWritten)
	return &RefusedError{out}
}

// writeEntry writes an entry of a ring. The second of its words is the checksum of those after it.
func writeEntry(to, words []uint64, ticket uint64) {
	words[1] = sum(words[2:])
	atomic.StoreUint64(&to[0], 2*ticket+1)
	for i := 1; i < len(words); i++ {
		storeRelease(&to[i], words[i])
	}
	// Release: pairs with the first load in readEntry.
	storeRelease(&to[0], 2*ticket+2)
}

// readEntry reads an entry. It returns false if the entry was replaced or is inconsistent.
func readEntry(from, words []uint64, ticket uint64) bool {
	for i := range words {
		words[i] = atomic.LoadUint64(&from[i])
	}
	return words[0] == 2*ticket+2 && atomic.LoadUint64(&from[0]) == words[0] && words[1] == sum(words[2:])
}

// holders returns how much of a device slot holds, and which processes hold most.
func (r *Region) holders(device, slot int) (own uint64, top []Holder) {
	for i := range r.high() {
		if !abi.Status(atomic.LoadUint64(&r.m.Status[i])).Holds() {
			continue
		}
		units := abi.Used(atomic.LoadUint64(&r.m.Accounts[device][i].Used)).Units()
		if i == slot {
			own = units * abi.Unit
		}
		if units > 0 {
			top = append(top, Holder{int(atomic.LoadUint64(&r.m.Slots[i].PID)), units * abi.Unit})
		}
	}
	sort.Slice(top, func(a, b int) bool { return top[a].Bytes > top[b].Bytes })
	return own, top[:min(len(top), abi.Holders)]
}

func sum(words []uint64) (x uint64) {
	for _, w := range words {
		x ^= w
	}
	return x
}

// Refusals returns the latest refusals, newest first.
func (r *Region) Refusals() (out []Refusal, err error) {
	defer r.guard(&err, debug.SetPanicOnFault(true))
	if err := r.whole(); err != nil {
		return nil, err
	}
	next := atomic.LoadUint64(&r.m.Header.RefusalNext)
	for back := uint64(1); back <= min(next, abi.Refusals); back++ {
		ticket := next - back
		var e abi.Refusal
		if !readEntry(refusalWords(&r.m.Refusals[ticket%abi.Refusals])[:], refusalWords(&e)[:], ticket) {
			continue
		}
		f := Refusal{
			Time: timeOf(e.Time), Slot: int(e.Slot), Device: int(e.Device), PID: pidOf(e.PID),
			Asked:  e.Asked, // any number: it was refused
			Waited: abi.Waited(e.Waited),
			Held:   possible(e.Held, maxBytes), Limit: possible(e.Limit, 2*maxBytes), Own: possible(e.Own, maxBytes),
		}
		for _, h := range e.Top {
			if bytes := possible(h.Bytes, maxBytes); bytes > 0 {
				f.Top = append(f.Top, Holder{pidOf(h.PID), bytes})
			}
		}
		out = append(out, f)
	}
	return out, r.whole()
}

// Recorded returns the number of refusals and deaths in the region, from their counters. If
// Refusals and Deaths return fewer, one is still being written, and no other word will change when
// it is complete; or its writer was killed.
func (r *Region) Recorded() (refusals, deaths int) {
	h := &r.m.Header
	return int(min(atomic.LoadUint64(&h.RefusalNext), abi.Refusals)), int(min(atomic.LoadUint64(&h.DeathNext), abi.Deaths))
}
