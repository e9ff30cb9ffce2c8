package abi

// The packing of every word that is more than a number. Each type is a value: load the word,
// convert it, and use its accessors; make a new value, and store or swap it. An accessor without
// arguments that returns a range of bits becomes a row of docs/format.md; the generator finds out
// the range by calling it.

// Widths and shifts of LedgerWord.
const (
	WordSeqBits   = 22
	WordSlotBits  = 10
	WordSlotShift = WordSeqBits
	WordUnitShift = WordSeqBits + WordSlotBits
	MaxUnits      = 1<<32 - 1 // the most units that a ledger can count

	FenceSlot = Slots - 1 // the slot number of a fence, which changes LedgerWord but no units; no process has it
)

// LedgerWord is a device's ledger: the granted units, and the change that led to them.
type LedgerWord uint64

// MakeLedgerWord packs a word. seq is cut to its width.
func MakeLedgerWord(units uint64, slot int, seq uint64) LedgerWord {
	return LedgerWord(units<<WordUnitShift | uint64(slot)<<WordSlotShift | ShortSeq(seq))
}

// Units is the number of granted units.
func (w LedgerWord) Units() uint64 { return uint64(w) >> WordUnitShift }

// Slot is the slot that made the last change; FenceSlot if a reaper put a fence.
func (w LedgerWord) Slot() int { return int(w>>WordSlotShift) & (1<<WordSlotBits - 1) }

// Seq has the low bits of that change's sequence.
func (w LedgerWord) Seq() uint64 { return ShortSeq(uint64(w)) }

// ShortSeq cuts a sequence to the width that LedgerWord and Account.Done keep.
func ShortSeq(seq uint64) uint64 { return seq & (1<<WordSeqBits - 1) }

// ToldGenShift is a shift of Told.
const ToldGenShift = 32

// Told says when a slot's owner was told to end.
type Told uint64

// MakeTold packs a word. gen and the time are cut to their widths; with time 0 the word counts whenever the owner ends.
func MakeTold(gen uint64, seconds int64) Told {
	return Told(gen<<ToldGenShift | uint64(uint32(seconds)))
}

// Gen has the low bits of the owner's generation.
func (t Told) Gen() uint64 { return uint64(t) >> ToldGenShift }

// Seconds has the low bits of the time, in seconds since 1970, or 0.
func (t Told) Seconds() uint64 { return uint64(uint32(t)) }

// Counts reports whether the owner of a generation was told to end, shortly before a time or for good.
func (t Told) Counts(gen uint64, now int64) bool {
	return t != 0 && t.Gen() == MakeTold(gen, 0).Gen() && (t.Seconds() == 0 || uint32(now)-uint32(t) <= ToldSeconds)
}

// Widths and shifts of Pend and Used.
const (
	SeqBits        = 31
	PendDeltaBits  = 64 - SeqBits
	UsedUnitBits   = 32
	usedUnitsMask  = 1<<UsedUnitBits - 1
	longSeqMask    = 1<<SeqBits - 1
	pendDeltaShift = 64 - PendDeltaBits
)

// NextSeq is the sequence of the announcement after seq.
func NextSeq(seq uint64) uint64 { return (seq + 1) & longSeqMask }

// Pend is an account's announced change.
type Pend uint64

// MakePend packs an announcement of delta units.
func MakePend(seq uint64, delta int64) Pend {
	return Pend(seq<<PendDeltaBits | uint64(delta)&(1<<PendDeltaBits-1))
}

// Seq is the announcement's sequence.
func (p Pend) Seq() uint64 { return uint64(p) >> PendDeltaBits }

// Delta is the announced change in units.
func (p Pend) Delta() int64 { return int64(p<<pendDeltaShift) >> pendDeltaShift }

// Used is what an account has booked.
type Used uint64

// MakeUsed packs a booking.
func MakeUsed(seq, units uint64) Used { return Used(seq<<UsedUnitBits | units&usedUnitsMask) }

// Seq is the sequence of the change booked last.
func (u Used) Seq() uint64 { return uint64(u) >> UsedUnitBits }

// Units is what the account holds.
func (u Used) Units() uint64 { return uint64(u) & usedUnitsMask }

const exportedUnitBits = 32

// Exported is the memory that a process has exported and that has not been returned, and a hash of
// the file (device and inode) that its descriptors are of.
type Exported uint64

// Units is that memory. It is at least as much as the process has exported.
func (e Exported) Units() uint64 { return uint64(e) & MaxUnits }

// File is the hash; zero while there was no descriptor, and ExportFiles if the descriptors are of
// different files. It counts only with an ExportLock.
func (e Exported) File() uint64 { return uint64(e) >> exportedUnitBits }

// ExportFiles is no hash of any file: hashes are odd. Each dma-buf is a file of its own.
const ExportFiles = 2

// Values of Account.ExportLock; zero if no descriptor and no IPC handle was given to the program.
const (
	ExportLockUnknown = 1       // a descriptor could not be locked
	ExportLockFirst   = 1 << 62 // this and higher ones are the offset of the locked byte, which is random for each process and device
)

// States of a slot.
const (
	SlotFree    = 0 // the slot has no owner; Slot still describes the last one
	SlotJoining = 1 // a process is filling Slot in
	SlotActive  = 2 // Slot describes the owner

	// A process found that the owner is dead: its memory is being returned.
	SlotCondemned = 3
	// An account of the slot has impossible content: the slot is out of use for good.
	SlotDamaged = 4
	// The owner is dead, and its memory was returned, except for exported memory of which there may
	// be a descriptor.
	SlotLent = 5

	StatusStateBits = 8
)

// Status is a slot's state and the generation of its owner.
type Status uint64

// MakeStatus packs a status.
func MakeStatus(gen uint64, state int) Status {
	return Status(gen<<StatusStateBits | uint64(state))
}

// Gen counts the owners of the slot.
func (s Status) Gen() uint64 { return uint64(s) >> StatusStateBits }

// State is SlotFree, SlotJoining, SlotActive, SlotCondemned, SlotDamaged or SlotLent.
func (s Status) State() int { return int(s & (1<<StatusStateBits - 1)) }

// Holds reports whether readers show the slot's accounts: the slot has an owner, or its dead owner
// is still being reaped or has lent memory.
func (s Status) Holds() bool {
	return s.State() == SlotActive || s.State() == SlotCondemned || s.State() == SlotLent
}

// HostPID is the host PID of a slot's owner, zero while unknown, with the owner's generation, so
// that a PID that is found late is not used for the next owner.
type HostPID uint64

// MakeHostPID packs a host PID.
func MakeHostPID(gen uint64, pid int) HostPID { return HostPID(gen<<32 | uint64(uint32(pid))) }

// PID is the host PID.
func (h HostPID) PID() int { return int(uint32(h)) }

// Gen has the low bits of the owner's generation.
func (h HostPID) Gen() uint64 { return uint64(h) >> 32 }

// ContextCost is the measured size of a process's first context on a device, in units, with a hash
// of the device's UUID, because it must never be used for another device. Zero while unknown.
type ContextCost uint64

const costUnitBits = 32

// MakeContextCost packs the size of a context. It returns zero for a size of zero, or one that a
// ledger cannot hold.
func MakeContextCost(uuid [2]uint64, bytes uint64) ContextCost {
	units, ok := UnitsFor(bytes)
	if !ok || units == 0 {
		return 0
	}
	return ContextCost(deviceHash(uuid)<<costUnitBits | units)
}

// Of returns the size of a context on the device with this UUID; zero if unknown.
func (c ContextCost) Of(uuid [2]uint64) uint64 {
	if uuid[1] == 0 || c.Hash() != deviceHash(uuid) {
		return 0
	}
	return c.Units() * Unit
}

// Hash is 32 bits of the device's UUID.
func (c ContextCost) Hash() uint64 { return uint64(c) >> costUnitBits }

// Units is the size of the context.
func (c ContextCost) Units() uint64 { return uint64(c) & MaxUnits }

// deviceHash returns 32 bits of a UUID: a multiplication for each word, as in C.
func deviceHash(uuid [2]uint64) uint64 {
	const golden = 0x9e3779b97f4a7c15
	h := uuid[0] * golden
	h ^= h >> 32
	return (h ^ uuid[1]) * golden >> 32
}

// NVMLPIDs says whether the driver's list shows the processes of one PID namespace, given by its
// inode, with their own PIDs. Zero while unknown.
type NVMLPIDs uint64

// MakeNVMLPIDs packs what was found out.
func MakeNVMLPIDs(pidns uint64, own bool) NVMLPIDs {
	if own {
		return NVMLPIDs(pidns<<1 | 1)
	}
	return NVMLPIDs(pidns << 1)
}

// Namespace is the PID namespace's inode.
func (n NVMLPIDs) Namespace() uint64 { return uint64(n) >> 1 }

// Own is 1 if the driver's list has the namespace's own PIDs.
func (n NVMLPIDs) Own() uint64 { return uint64(n) & 1 }

// ComputeNone is a share or a cap that was set to none. Unlike zero, it is not overwritten by a
// process with a limit. Any value outside of 1 to 100 limits nothing.
const ComputeNone = 255

// Percent returns a share or a cap as a number from 1 to 100, or 0 if there is none.
func Percent(word uint64) int {
	if word > 100 {
		return 0
	}
	return int(word)
}

// RoundOf returns the round for a value of Limits.Round, in microseconds.
func RoundOf(word uint64) uint64 {
	if word < MinRound || word > MaxRound {
		return DefaultRound
	}
	return word
}

// Values of Limits.Priority.
const (
	PriorityHigh   = 1
	PriorityNormal = 2
	PriorityLow    = 3
)

// PriorityOf returns the priority for a value of Limits.Priority.
func PriorityOf(word uint64) uint64 {
	if word != PriorityHigh && word != PriorityLow {
		return PriorityNormal
	}
	return word
}

// Widths of WaitPlace.
const (
	PlaceSlotBits   = 11
	PlaceDeviceBits = 4
	PlaceGenBits    = 17
	PlaceTicketBits = 32
)

// WaitPlace says which request waits: the slot plus one and the low bits of the generation of its
// process, the device, and the ticket, which is its turn. It is one word, so that a request is in the
// queue with its turn, or not at all.
type WaitPlace uint64

// MakeWaitPlace packs a place.
func MakeWaitPlace(slot int, gen uint64, device int, ticket uint64) WaitPlace {
	p := uint64(slot+1) & (1<<PlaceSlotBits - 1)
	p |= uint64(device) & (1<<PlaceDeviceBits - 1) << PlaceSlotBits
	p |= gen & (1<<PlaceGenBits - 1) << (PlaceSlotBits + PlaceDeviceBits)
	return WaitPlace(p | ticket<<(64-PlaceTicketBits))
}

// Owner is the slot of the process plus one; zero if the entry is free.
func (p WaitPlace) Owner() int { return int(p & (1<<PlaceSlotBits - 1)) }

// Device is the device of the request.
func (p WaitPlace) Device() int { return int(p >> PlaceSlotBits & (1<<PlaceDeviceBits - 1)) }

// Gen has the low bits of the process's generation.
func (p WaitPlace) Gen() uint64 {
	return uint64(p) >> (PlaceSlotBits + PlaceDeviceBits) & (1<<PlaceGenBits - 1)
}

// Ticket is the request's turn.
func (p WaitPlace) Ticket() uint32 { return uint32(p >> (64 - PlaceTicketBits)) }

// Of reports whether the process that owns a slot with this status has the place.
func (p WaitPlace) Of(s Status) bool {
	return s.State() == SlotActive && p.Gen() == s.Gen()&(1<<PlaceGenBits-1)
}

// WaitedMutualBit marks a refusal in Waited.
const WaitedMutualBit = 63

// Waited is for how long a refused request has waited for memory, in nanoseconds.
type Waited uint64

// Nanoseconds is how long the request has waited.
func (w Waited) Nanoseconds() int64 { return int64(w &^ (1 << WaitedMutualBit)) }

// Mutual reports whether the request could not fit while processes that waited as well kept their memory.
func (w Waited) Mutual() bool { return w>>WaitedMutualBit != 0 }

// WaitAllocOf returns for how many milliseconds a request waits, for a value of Limits.WaitAlloc; 0 if it
// does not wait.
func WaitAllocOf(word uint64) uint64 {
	if word > MaxWaitAlloc {
		return 0
	}
	return word
}

// Widths of Work.
const (
	WorkTimeBits    = 48
	WorkContextBits = 15
	WorkWaitingBit  = 63
)

// Work is the last sign of work of a process on a device. A job divides its share among the
// contexts that have work. Zero if there was none. A sign counts for WorkLeaseUS; while a thread
// waits for the device, it counts as long as the process lives.
type Work uint64

// MakeWork packs a sign of work.
func MakeWork(microseconds uint64, contexts int, waiting bool) Work {
	w := Work(microseconds&(1<<WorkTimeBits-1) | uint64(contexts)&(1<<WorkContextBits-1)<<WorkTimeBits)
	if waiting {
		w |= 1 << WorkWaitingBit
	}
	return w
}

// Time is the time of the sign, in microseconds of the monotonic clock.
func (w Work) Time() uint64 { return uint64(w) & (1<<WorkTimeBits - 1) }

// Contexts is the number of contexts of the process that had work lately.
func (w Work) Contexts() int { return int(w >> WorkTimeBits & (1<<WorkContextBits - 1)) }

// Waiting is 1 while a thread waits for the device.
func (w Work) Waiting() uint64 { return uint64(w) >> WorkWaitingBit }

// Widths of Due.
const (
	DueTimeBits = 57
	DueCapBits  = 7
)

// Due is the time at which all charged time of a device is paid off, and the cap it was computed
// with. Launches wait for that time. If the cap has changed since, the remaining time is scaled.
// Zero if nothing was ever charged.
type Due uint64

// MakeDue packs a due time.
func MakeDue(nanoseconds uint64, percent int) Due {
	return Due(nanoseconds&(1<<DueTimeBits-1) | uint64(percent)<<DueTimeBits)
}

// Time is the due time, in nanoseconds of the monotonic clock.
func (d Due) Time() uint64 { return uint64(d) & (1<<DueTimeBits - 1) }

// Cap is the cap in per cent.
func (d Due) Cap() int { return int(d >> DueTimeBits) }

// Widths of TimePart.
const (
	PartUsedBits   = 21
	PartNumberBits = 64 - PartUsedBits
)

// TimePart is how much of one period (PartNS of the monotonic clock) the job's processes have charged together.
// Time in which several of them had work is charged once.
type TimePart uint64

// MakeTimePart packs what was charged of a part.
func MakeTimePart(number, nanoseconds uint64) TimePart {
	return TimePart(number<<PartUsedBits | nanoseconds&(1<<PartUsedBits-1))
}

// Number is the number of the period: its start in nanoseconds, divided by PartNS.
func (p TimePart) Number() uint64 { return uint64(p) >> PartUsedBits }

// Used is the number of nanoseconds of it that were charged.
func (p TimePart) Used() uint64 { return uint64(p) & (1<<PartUsedBits - 1) }

// Values of Slice.State: the result of setting a process's time slices.
const (
	SliceNone    = 0 // no context yet; or the job had no share and no cap when the process started, so none applies to it
	SliceKept    = 1 // the driver has the requested slices
	SliceUnseen  = 2 // a context was made without the call that sets its slice
	SliceUnknown = 3 // the driver's call is not the known one
	SliceRefused = 4 // the driver refused
	SliceLost    = 5 // the driver reports another value
	SliceCrowded = 6 // the process has more contexts than the library follows
	SliceReady   = 7 // no share yet; one that the job gets later applies to the process
)

// Widths of Slice.
const (
	SliceTimeBits  = 32
	SliceStateBits = 8
)

// Slice is the time slice that a process's contexts have on a device.
type Slice uint64

// MakeSlice packs a slice.
func MakeSlice(microseconds uint64, state int) Slice {
	return Slice(microseconds&(1<<SliceTimeBits-1) | uint64(state)&(1<<SliceStateBits-1)<<SliceTimeBits)
}

// Time is the slice of each context in microseconds.
func (s Slice) Time() uint64 { return uint64(s) & (1<<SliceTimeBits - 1) }

// State is one of the constants from SliceNone.
func (s Slice) State() int { return int(s >> SliceTimeBits & (1<<SliceStateBits - 1)) }

// Values of Phase.Phase.
const (
	PhaseIdle = 0 // readers use A
	PhaseB    = 1 // B is being written, readers use A
	PhaseA    = 3 // A is being written, readers use B
	Phases    = 4 // increment of Phase from one change to the next
)

// Phase is an account's sequence lock: odd while a write is under way.
type Phase uint64

// Count counts the changes.
func (p Phase) Count() uint64 { return uint64(p) / Phases }

// Phase is PhaseIdle, PhaseB or PhaseA.
func (p Phase) Phase() uint64 { return uint64(p) % Phases }

// Limit widths: a set bit, and units.
const (
	limitSet            = 1 << 63
	LimitUnitBits       = 48
	limitUnitsMask      = 1<<LimitUnitBits - 1
	LimitUnlimitedUnits = limitUnitsMask // no limit
	LimitSetBit         = 63
)

// Limit is a device's memory limit in one word, so that one store changes it. Zero means that it is
// not set.
type Limit uint64

// Unlimited is a limit that was set to none.
const Unlimited = Limit(limitSet | limitUnitsMask)

// MakeLimit packs a limit in bytes, rounded down to whole units and to the most that a ledger can
// hold.
func MakeLimit(bytes uint64) Limit { return Limit(limitSet | min(bytes/Unit, MaxUnits)) }

// IsSet reports whether the limit is set, even if to none.
func (l Limit) IsSet() bool { return l&limitSet != 0 }

// Units is the limit; LimitUnlimitedUnits means none.
func (l Limit) Units() uint64 { return uint64(l & limitUnitsMask) }

// Limited reports whether there is a limit.
func (l Limit) Limited() bool { return l.IsSet() && l.Units() != LimitUnlimitedUnits }

// Bytes is the limit in bytes; zero if there is none.
func (l Limit) Bytes() uint64 {
	if !l.Limited() {
		return 0
	}
	return l.Units() * Unit
}

// Ceiling is the largest number of units that may be granted.
func (l Limit) Ceiling() uint64 {
	if !l.Limited() {
		return MaxUnits
	}
	return min(l.Units(), MaxUnits)
}

// UnitsFor rounds bytes up to whole units. It returns false if a ledger cannot hold that many.
func UnitsFor(bytes uint64) (uint64, bool) {
	units := bytes / Unit
	if bytes%Unit != 0 {
		units++
	}
	return units, units <= MaxUnits
}
