// Package abi declares the layout of a region: the one file that all processes of a job map. It has
// types, constants and the packing of words. It accesses no memory and contains no protocol; these
// are in docs/protocols.md, internal/region and shim/region.
//
// The layout is declared only here. go generate writes its C twin, shim/region/abi.h, with an
// assertion for every size and offset, and docs/format.md, for readers in other languages. That
// page uses the comments of types, fields, constants and accessors.
//
// Rules: every structure has C's layout (structs.HostLayout); fields have a fixed width; padding is
// explicit; a word that several processes write often has a cache line of its own. Any change here
// is a change of Version.
package abi

import "structs"

//go:generate go run ./gen -header ../../shim/region/abi.h -page ../../docs/format.md

// Capacity of a region.
const (
	Devices  = 16   // GPUs that a job can use
	Slots    = 1024 // places for processes, one of which is FenceSlot; a slot number fits WordSlotBits
	Refusals = 256  // the latest refusals are kept
	Deaths   = 64   // the latest deaths are kept
	Waiters  = 64   // requests that wait for memory in turn; others wait behind them

	Unit     = 512  // bytes in one unit of the ledger
	PageSize = 4096 // alignment of Limits, so that it can be mapped separately
	NameLen  = 64   // bytes of a process's name
	Holders  = 3    // largest holders that a refusal lists
)

// Identity of the file.
const (
	Magic       = 0x314e4f4954415201 // "\x01RATION1" in the file
	LimitsMagic = 0x314d494c54415201 // "\x01RATLIM1"
	TailMagic   = 0x314c494154544152 // "RATTAIL1"
	Version     = 5                  // of the layout
)

// Values of Header.State, in order.
const (
	StateUninit     = 0 // a new file
	StateInProgress = 1 // being initialised
	StateComplete   = 2 // ready; only now the rest of the file is valid
)

// Kind is the purpose of a piece of device memory.
type Kind int

// The kinds, as indices into Usage.Kind.
const (
	Context  Kind = iota // memory that the driver takes for a context
	Module               // code and globals of loaded modules
	Data                 // memory that the program allocated
	Overhead             // memory that the driver reports beyond everything we counted
	Kinds                // number of kinds
)

var kindNames = [Kinds]string{"context", "module", "data", "overhead"}

func (k Kind) String() string {
	if k < 0 || k >= Kinds {
		return "unknown"
	}
	return kindNames[k]
}

// Region is the whole file.
type Region struct {
	_        structs.HostLayout
	Header   Header
	Limits   Limits                  // used if there is no file with limits beside the region
	Devices  [Devices]Device         // by device
	Compute  [Devices]Compute        // by device
	Status   [Slots]uint64           // by slot, packed by Status; contiguous, so that a scan of all slots is cheap
	Slots    [Slots]Slot             // by slot
	Refusals [Refusals]Refusal       // a ring, by ticket modulo Refusals
	Deaths   [Deaths]Death           // a ring, by ticket modulo Deaths
	Accounts [Devices][Slots]Account // by device, then by slot
	Tail     Tail
}

// Header is the first page.
type Header struct {
	_       structs.HostLayout
	Magic   uint64 // the constant Magic, in every version of the layout
	Version uint32 // the constant Version; at this offset in every version
	Flags   uint32 // LimitsBeside or LimitsInside; set once
	Size    uint64 // bytes of the file; at this offset in every version
	State   uint64 // StateUninit, StateInProgress or StateComplete
	Created uint64 // Unix nanoseconds at which the region was created
	Devices uint32 // length of Region.Devices, the constant Devices
	Slots   uint32 // length of Region.Slots, the constant Slots
	_       [2]uint64

	Ticket    uint64 // where the next claim starts to search for a free slot
	HighWater uint64 // no slot with this number or a higher one was ever claimed
	_         [6]uint64

	RefusalNext uint64 // ticket of the next refusal; counts all refusals ever
	DeathNext   uint64 // ticket of the next death; counts all deaths ever
	_           [6]uint64

	Counters Counters

	// HostPIDLock is the lock for finding a host PID in the driver's process list, one process at a
	// time. From bit 48: the number of turns. From bit 16: the low 32 bits of the holder's
	// generation. From bit 11: a count of its signs of life. Below: its slot plus one. All but the
	// number of turns are zero while the lock is free.
	HostPIDLock uint64
	NVMLPIDs    uint64 `c:"nvml_pids"` // packed by NVMLPIDs; written as rarely as HostPIDLock
	_           [6]uint64

	Sleep  uint64 // packed by Sleep: whether the job sleeps; the low 32 bits are a futex, woken at each change
	Wanted uint64 // number of times that a thread has asked for the job to wake up; the low 32 bits are a futex, woken at each change
	Slept  uint64 // Unix nanoseconds at which the state in Sleep last changed; zero if it never has
	_      [5]uint64

	WaitNext uint64          // ticket of the next request that waits for memory; its low 32 bits count
	Waiters  [Waiters]Waiter // requests that wait for memory, in any order: Waiter.Place has their turns
	_        [199]uint64
}

// Waiter is a thread whose request does not fit in the job's limit, and waits for room.
type Waiter struct {
	_     structs.HostLayout
	Place uint64 // packed by WaitPlace; zero if the entry is free
	Units uint64 // units that it waits for
	Since uint64 // Unix nanoseconds at which it began to wait
	Beat  uint64 // nanoseconds of the machine's monotonic clock when it last looked for room
}

// Values of Header.Flags, set once: where the limits were when the region was created. A file
// beside the region always applies if it exists; LimitsBeside only says that attaching without it
// is an error. Nothing else may depend on this word, because the job's processes can write it.
const (
	LimitsBeside = 1 // in a separate file: the region's path with .limits appended
	LimitsInside = 2 // in Region.Limits
)

// Counters are totals over the life of the region. Readers add to them in
// batches.
type Counters struct {
	_          structs.HostLayout
	Reads      uint64 // consistent reads
	Retries    uint64 // retries of these reads
	BestEffort uint64 // reads that gave up after ReadTries
	Reaped     uint64 // slots of dead processes that were freed
	Refused    uint64 // requests refused
	Helped     uint64 // initialisations that were finished for a process that was slow or had died
	Claims     uint64 // slots claimed
	Fast       uint64 // attaches that found the region initialised

	Damaged uint64 // slots put out of use because of impossible content
	_       [7]uint64
}

// Limits is a separate page: inside the region if a job makes its own limits, or the whole content
// of a file beside it that an operator owns.
type Limits struct {
	_       structs.HostLayout
	Magic   uint64 // the constant LimitsMagic
	Version uint32 // the constant Version
	_       uint32
	Size    uint64 // bytes of this structure
	Changes uint64 // number of changes of limits while the job runs
	Round   uint64 // microseconds that the slices of all jobs on a device take together if their shares add up to 100; zero means DefaultRound

	Priority uint64 // one of PriorityHigh to PriorityLow; zero means PriorityNormal

	WaitAlloc uint64 // milliseconds that a request waits for memory of the job at most, up to MaxWaitAlloc; any other value means that it does not wait
	_         uint64

	Device [Devices]DeviceLimits // by device
	_      [248]uint64
}

// DeviceLimits are a job's limits on one device.
type DeviceLimits struct {
	_       structs.HostLayout
	Memory  uint64    // packed by Limit
	Compute uint64    // share: the least per cent of the device's time; zero if not set, ComputeNone if set to none
	UUID    [2]uint64 // the 16 bytes of the UUID as two big-endian numbers; the second is zero while unknown
	Total   uint64    // size of the device in bytes; zero while unknown

	ComputeMax uint64 // cap: the most per cent of the device's time; as Compute
	Hidden     uint64 // not 0 if the job's processes do not see the device: 1 by the place of the job, 2 by a run's own choice; never changes while the job lives
	_          [9]uint64
}

// Device is one device's ledger.
type Device struct {
	_          structs.HostLayout
	LedgerWord uint64 // packed by LedgerWord
	Wake       uint32 // a futex: requests that wait for memory sleep on it. WakeWaiting is set while some do, and each wake adds WakeStep
	_          uint32
	_          [6]uint64

	Peak        uint64 // most units that living processes ever were charged at once; while it grows, up to 1/PeakStep too low
	Refused     uint64 // requests refused, over the life of the region
	ContextCost uint64 // packed by ContextCost; the last process that measured it overwrites it
	Fences      uint64 // number of fences put into LedgerWord; sequence of the next one
	_           [4]uint64
}

// Compute is a job's use of one device's time, if it has a cap.
type Compute struct {
	_     structs.HostLayout
	Due   uint64 // packed by Due
	Clock uint64 // Unix nanoseconds at which the monotonic clock of Due and Parts was zero, about: another boot has another clock
	_     [6]uint64

	Used   uint64 // nanoseconds of the device's time, as measured and charged; it bounds Due
	Waited uint64 // nanoseconds that launches waited, summed over all threads
	InTurn uint64 // the part of Used in which no other context had the device: the first slice of each period of work
	_      [5]uint64

	Parts [Parts]uint64 // packed by TimePart; a ring, by its number modulo Parts
}

// Slot is one process.
type Slot struct {
	_       structs.HostLayout
	PID     uint64        // in the process's own PID namespace
	HostPID uint64        // packed by HostPID; written by any process that sees the host's PIDs
	Start   uint64        // start time in clock ticks since boot: with PID, it identifies a process uniquely
	PIDNS   uint64        // inode of its PID namespace
	UID     uint64        // effective user ID
	Joined  uint64        // Unix nanoseconds at which it took the slot
	Left    uint64        // generation of an owner that has announced its exit: its end is not a death
	Told    uint64        // packed by Told: its owner was told to end, so that its end is not a death
	Name    [NameLen]byte // ends at the first zero byte; may contain any other bytes

	Turns  uint64 // packed by Turns
	Cannot uint64 // why the process cannot sleep: bits from CannotManaged on; zero if it can
	Lane   uint64 // packed by Lane: where the memory is that the library itself puts aside; its low half is a futex
	_      [5]uint64
}

// Account is one slot on one device.
type Account struct {
	_     structs.HostLayout
	Phase uint64 // packed by Phase: the sequence lock
	Gen   uint64 // generation of the owner of this account
	A     Usage  // one copy of the usage
	Peak  uint64 // bytes: the largest A.Total so far

	B      Usage  // the other copy
	Pend   uint64 // packed by Pend
	Used   uint64 // packed by Used
	Driver uint64 // the driver's count in bytes for this process; zero while unknown

	Done uint64 // sequence of the newest change known to be applied, WordSeqBits wide; other processes write it

	Work       uint64 // packed by Work: when the process last had work on the device; zeroed with Gen
	Slice      uint64 // packed by Slice: the time slice of its contexts; zeroed with Gen
	TimeUsed   uint64 // nanoseconds of the device's time, measured for a cap; zeroed with Gen
	TimeWaited uint64 // nanoseconds that its launches waited because of a cap; zeroed with Gen
	Uncharged  uint64 // when the oldest work that is not charged to a cap yet began, by the clock of Due; zero if there is none; zeroed with Gen
	Exported   uint64 // packed by Exported: the memory that may outlive the owner; zeroed with Gen
	ExportLock uint64 // the byte that is locked in each exported descriptor's file: from ExportLockFirst on, or 0 or ExportLockUnknown; zeroed with Gen
}

// Usage is bytes by kind and their sum.
type Usage struct {
	_     structs.HostLayout
	Total uint64        // bytes: the sum of Kind
	Kind  [Kinds]uint64 // bytes, by kind
}

// Refusal is one entry of the ring of recent refusals.
type Refusal struct {
	_      structs.HostLayout
	Seq    uint64          // 2·ticket+1 while being written, 2·ticket+2 after
	Sum    uint64          // exclusive or of all 64-bit words that follow; it reveals an entry that two writers mixed
	Time   uint64          // Unix nanoseconds
	Slot   uint32          // slot of the refused process
	Device uint32          // device of the request
	PID    uint64          // PID of the refused process, in its own PID namespace
	Asked  uint64          // bytes
	Held   uint64          // bytes granted on the device at that moment
	Limit  uint64          // bytes
	Own    uint64          // bytes that the refused process held
	Top    [Holders]Holder // the processes that held most, largest first; Bytes is zero in unused entries
	Waited uint64          // packed by Waited; zero if the request did not wait
}

// Holder is a process, and how much it held when a request was refused.
type Holder struct {
	_     structs.HostLayout
	PID   uint64 // in the process's own PID namespace
	Bytes uint64 // on the refused request's device
}

// Death is one entry of the ring of recent deaths: a process that ended without leaving, and whose
// memory another process returned.
type Death struct {
	_       structs.HostLayout
	Seq     uint64          // 2·ticket+1 while being written, 2·ticket+2 after
	Sum     uint64          // exclusive or of all 64-bit words that follow; it reveals an entry that two writers mixed
	Time    uint64          // Unix nanoseconds at which it was noticed
	Slot    uint32          // slot of the dead process
	Cause   uint32          // how it was noticed: one of the constants from CauseUnknown
	PID     uint64          // PID of the dead process, in its own PID namespace
	HostPID uint64          // packed by HostPID
	Joined  uint64          // Unix nanoseconds at which it took the slot
	Reaper  uint64          // PID of the process that noticed it, in that process's PID namespace
	Name    [NameLen]byte   // of the dead process; ends at the first zero byte
	Held    [Devices]uint64 // bytes, by device, as last published by the process
}

// Values of Death.Cause: how a death was noticed. In each case the slot's byte was unlocked.
const (
	CauseUnknown  = 0 // the process that noticed it died before it had returned everything
	CauseUnseen   = 1 // the process that noticed it could not see it: it was in another PID namespace
	CauseExec     = 2 // it had the same PID: it executed another program
	CauseEnded    = 3 // no process has its PID
	CauseReused   = 4 // the process that has its PID started at another time
	CauseZombie   = 5 // it is a zombie
	CauseUnmapped = 6 // it does not map the region any more: it executed another program
	CauseJoining  = 7 // it died while it joined

	CauseAsleep = 1 << 8 // is added to the cause if the job slept: Held had been put aside into host memory, and was not returned
)

// Tail ends the file. A file that was ever cut short has lost it, even if it was extended again.
type Tail struct {
	_     structs.HostLayout
	Magic uint64 // the constant TailMagic
	_     [511]uint64
}

// Bounds of the protocols, the same in both languages.
const (
	ReadTries     = 100       // tries of a consistent read
	ReapTries     = 4096      // steps of settling a dead process's account, before it is left to the next reaper
	InitTimeoutNS = 5_000_000 // nanoseconds that a waiter gives the initialiser
	DoneRefresh   = 1 << 16   // number of changes after which an owner rewrites its own Done
	ClaimWindow   = 64        // slots tried first; doubled when none is free
	PeakStep      = 64        // a growing device's Peak is written when it is exceeded by 1/PeakStep
	DefaultRound  = 20_000    // microseconds: Limits.Round if it is not set or out of bounds
	MinRound      = 1_000     // microseconds: the smallest Limits.Round
	MaxRound      = 200_000   // microseconds: the largest Limits.Round
	WorkLeaseUS   = 100_000   // microseconds for which a sign of work counts
	PartNS        = 1 << 20   // nanoseconds of one TimePart
	Parts         = 1024      // number of TimeParts that are kept

	WakeWaiting    = 1           // bit of Device.Wake
	WakeStep       = 2           // added to Device.Wake by each wake
	MaxWaitAlloc   = 86_400_000  // milliseconds: the largest Limits.WaitAlloc
	WaitAllocNone  = 0xffff_ffff // Limits.WaitAlloc that was set to none: unlike zero, a process with a setting does not replace it
	WaitLookNS     = 5_000_000   // nanoseconds after which the first two waiters look again, without a wake
	WaitLookLateNS = 50_000_000  // the same for those behind them
	WaitStaleNS    = 200_000_000 // nanoseconds without a look after which others do not wait for a waiter

	ToldSeconds = 60             // seconds for which Slot.Told counts if it has a time
	UnchargedNS = 10_000_000_000 // nanoseconds that a dead process is charged at most for Account.Uncharged
)
