package abi

// The packing of every word that is more than a number. Each type is a value:
// load the word, convert, look inside; make a new one, store or swap it. An
// accessor without arguments that returns a range of bits as they are is a row of
// docs/format.md; the generator finds the range by asking it.

// Widths and shifts of LedgerWord.
const (
	WordSeqBits   = 22
	WordSlotBits  = 10
	WordSlotShift = WordSeqBits
	WordUnitShift = WordSeqBits + WordSlotBits
	MaxUnits      = 1<<32 - 1 // the most units that a ledger can count

	FenceSlot = Slots - 1 // the slot of a fence, which changes LedgerWord and no units; no process has it
)

// LedgerWord is a device's ledger: what is granted, and by which change.
type LedgerWord uint64

// MakeLedgerWord packs a word. seq is cut to its width.
func MakeLedgerWord(units uint64, slot int, seq uint64) LedgerWord {
	return LedgerWord(units<<WordUnitShift | uint64(slot)<<WordSlotShift | ShortSeq(seq))
}

// Units is what the device has granted.
func (w LedgerWord) Units() uint64 { return uint64(w) >> WordUnitShift }

// Slot is the one that made the last change; FenceSlot where a reaper put a fence.
func (w LedgerWord) Slot() int { return int(w>>WordSlotShift) & (1<<WordSlotBits - 1) }

// Seq is the low end of that change's sequence.
func (w LedgerWord) Seq() uint64 { return ShortSeq(uint64(w)) }

// ShortSeq cuts a sequence to the width that LedgerWord and Account.Done keep.
func ShortSeq(seq uint64) uint64 { return seq & (1<<WordSeqBits - 1) }

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

// States of a slot.
const (
	SlotFree    = 0 // the slot has no owner; Slot still describes the last one
	SlotJoining = 1 // a process is filling Slot in
	SlotActive  = 2 // Slot describes the owner

	// A process found that the owner is dead: what it holds is being returned.
	SlotCondemned = 3
	// An account of the slot holds what cannot be: it is out of use for good.
	SlotDamaged = 4

	StatusStateBits = 8
)

// Status is a slot's state and the generation of its owner.
type Status uint64

// MakeStatus packs a status.
func MakeStatus(gen uint64, state int) Status {
	return Status(gen<<StatusStateBits | uint64(state))
}

// Gen counts the owners the slot has had.
func (s Status) Gen() uint64 { return uint64(s) >> StatusStateBits }

// State is SlotFree, SlotJoining, SlotActive, SlotCondemned or SlotDamaged.
func (s Status) State() int { return int(s & (1<<StatusStateBits - 1)) }

// Holds says whether what the slot's account holds is shown: its owner's, or that of
// one which is being reaped.
func (s Status) Holds() bool { return s.State() == SlotActive || s.State() == SlotCondemned }

// HostPID is the PID of a slot's owner as the host sees it, zero while unknown,
// with the owner's generation, so that one found late is not taken for the next
// owner's.
type HostPID uint64

// MakeHostPID packs a host PID.
func MakeHostPID(gen uint64, pid int) HostPID { return HostPID(gen<<32 | uint64(uint32(pid))) }

// PID is the host PID.
func (h HostPID) PID() int { return int(uint32(h)) }

// Gen is the low end of the owner's generation.
func (h HostPID) Gen() uint64 { return uint64(h) >> 32 }

// ContextCost is what the first context of a process takes on a device, as a process
// measured it: units, and which device that was, by a hash of its UUID, since a cost
// must never be taken for another device's. Zero while unknown.
type ContextCost uint64

const costUnitBits = 32

// MakeContextCost packs what a context takes; zero where it takes nothing, or more than a
// ledger holds.
func MakeContextCost(uuid [2]uint64, bytes uint64) ContextCost {
	units, ok := UnitsFor(bytes)
	if !ok || units == 0 {
		return 0
	}
	return ContextCost(deviceHash(uuid)<<costUnitBits | units)
}

// Of is what a context takes on the device with this UUID; zero where that is not
// known.
func (c ContextCost) Of(uuid [2]uint64) uint64 {
	if uuid[1] == 0 || c.Hash() != deviceHash(uuid) {
		return 0
	}
	return c.Units() * Unit
}

// Hash is 32 bits of the device's UUID.
func (c ContextCost) Hash() uint64 { return uint64(c) >> costUnitBits }

// Units is what the context takes.
func (c ContextCost) Units() uint64 { return uint64(c) & MaxUnits }

// deviceHash is 32 bits of a UUID: a multiplication for each word, the same in C.
func deviceHash(uuid [2]uint64) uint64 {
	const golden = 0x9e3779b97f4a7c15
	h := uuid[0] * golden
	h ^= h >> 32
	return (h ^ uuid[1]) * golden >> 32
}

// NVMLPIDs says of one PID namespace, by its inode, whether the driver's list has its
// processes by the PIDs they call themselves. Zero while unknown.
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

// Own is 1 where the driver's list has the namespace's own PIDs.
func (n NVMLPIDs) Own() uint64 { return uint64(n) & 1 }

// ComputeNone is a share or a cap that was set to none: unlike zero, a process that brings
// one along does not set it. All that is not from 1 to 100 limits nothing.
const ComputeNone = 255

// Percent returns a share or a cap as a number from 1 to 100, or 0 where there is none.
func Percent(word uint64) int {
	if word > 100 {
		return 0
	}
	return int(word)
}

// RoundOf returns the round that Limits.Round stands for, in microseconds.
func RoundOf(word uint64) uint64 {
	if word < MinRound || word > MaxRound {
		return DefaultRound
	}
	return word
}

// Widths of Work.
const (
	WorkTimeBits    = 48
	WorkContextBits = 15
	WorkWaitingBit  = 63
)

// Work is the last sign of work of a process on a device, by which its job divides its
// share: among the contexts that have work. Zero where there never was any. A sign counts
// for WorkLeaseUS; while a thread waits for the device it counts on, for as long as the
// process lives.
type Work uint64

// MakeWork packs a sign of work.
func MakeWork(microseconds uint64, contexts int, waiting bool) Work {
	w := Work(microseconds&(1<<WorkTimeBits-1) | uint64(contexts)&(1<<WorkContextBits-1)<<WorkTimeBits)
	if waiting {
		w |= 1 << WorkWaitingBit
	}
	return w
}

// Time is when: microseconds of the monotonic clock.
func (w Work) Time() uint64 { return uint64(w) & (1<<WorkTimeBits - 1) }

// Contexts is how many contexts of the process had work lately.
func (w Work) Contexts() int { return int(w >> WorkTimeBits & (1<<WorkContextBits - 1)) }

// Waiting is 1 while a thread waits for the device.
func (w Work) Waiting() uint64 { return uint64(w) >> WorkWaitingBit }

// Widths of Due.
const (
	DueTimeBits = 57
	DueCapBits  = 7
)

// Due is when all of a device's time that was charged will have been due, which launches wait
// for, and the cap that it was reckoned with: where the cap is another one by now, a debt is as
// much longer or shorter. Zero where nothing was ever charged.
type Due uint64

// MakeDue packs a due time.
func MakeDue(nanoseconds uint64, percent int) Due {
	return Due(nanoseconds&(1<<DueTimeBits-1) | uint64(percent)<<DueTimeBits)
}

// Time is when: nanoseconds of the monotonic clock.
func (d Due) Time() uint64 { return uint64(d) & (1<<DueTimeBits - 1) }

// Cap is the cap in per cent.
func (d Due) Cap() int { return int(d >> DueTimeBits) }

// Widths of TimePart.
const (
	PartUsedBits   = 21
	PartNumberBits = 64 - PartUsedBits
)

// TimePart is how much of one part of the monotonic clock's time, PartNS long, was charged: by all
// processes of the job together, so that the time in which several had work is charged once.
type TimePart uint64

// MakeTimePart packs what was charged of a part.
func MakeTimePart(number, nanoseconds uint64) TimePart {
	return TimePart(number<<PartUsedBits | nanoseconds&(1<<PartUsedBits-1))
}

// Number is which part of time: its beginning in nanoseconds, divided by PartNS.
func (p TimePart) Number() uint64 { return uint64(p) >> PartUsedBits }

// Used is how many nanoseconds of it were charged.
func (p TimePart) Used() uint64 { return uint64(p) & (1<<PartUsedBits - 1) }

// What became of a process's time slices: values of Slice.State.
const (
	SliceNone    = 0 // no context yet, or the process is held to no share and no cap, as its job had none when it began
	SliceKept    = 1 // the driver has the slices that were asked for
	SliceUnseen  = 2 // a context was made without the call that sets its slice
	SliceUnknown = 3 // the driver's call is another one than is known
	SliceRefused = 4 // the driver refused
	SliceLost    = 5 // the driver says that it has another value
	SliceCrowded = 6 // the process has more contexts than the library follows
	SliceReady   = 7 // no share; the process is held to one that the job gets
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

// Time is the slice in microseconds, of each context.
func (s Slice) Time() uint64 { return uint64(s) & (1<<SliceTimeBits - 1) }

// State is one of the constants from SliceNone.
func (s Slice) State() int { return int(s >> SliceTimeBits & (1<<SliceStateBits - 1)) }

// Values of Phase.Phase.
const (
	PhaseIdle = 0 // readers use A
	PhaseB    = 1 // B is being written, readers use A
	PhaseA    = 3 // A is being written, readers use B
	Phases    = 4 // what Phase grows by from one change to the next
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
	LimitUnlimitedUnits = limitUnitsMask // there is no limit
	LimitSetBit         = 63
)

// Limit is a device's memory limit as one word, so that it changes in one store.
// Zero means that none has been set yet.
type Limit uint64

// Unlimited is a limit that was set to none.
const Unlimited = Limit(limitSet | limitUnitsMask)

// MakeLimit packs a limit of so many bytes, rounded down to whole units and to
// what a ledger can hold.
func MakeLimit(bytes uint64) Limit { return Limit(limitSet | min(bytes/Unit, MaxUnits)) }

// IsSet says whether the limit has been set, be it to none.
func (l Limit) IsSet() bool { return l&limitSet != 0 }

// Units is the limit; LimitUnlimitedUnits means none.
func (l Limit) Units() uint64 { return uint64(l & limitUnitsMask) }

// Limited says whether there is a bound at all.
func (l Limit) Limited() bool { return l.IsSet() && l.Units() != LimitUnlimitedUnits }

// Bytes is the limit; zero where there is none.
func (l Limit) Bytes() uint64 {
	if !l.Limited() {
		return 0
	}
	return l.Units() * Unit
}

// Ceiling is the most units that may be granted.
func (l Limit) Ceiling() uint64 {
	if !l.Limited() {
		return MaxUnits
	}
	return min(l.Units(), MaxUnits)
}

// UnitsFor rounds bytes up to whole units. It reports false where the ledger
// could not hold that many.
func UnitsFor(bytes uint64) (uint64, bool) {
	units := bytes / Unit
	if bytes%Unit != 0 {
		units++
	}
	return units, units <= MaxUnits
}
