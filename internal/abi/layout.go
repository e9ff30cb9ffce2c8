// Package abi declares the layout of a region: the one file that all processes
// of a job map. It holds types, constants and the packing of words; it touches
// no memory and knows no protocol (docs/protocols.md, internal/region and
// shim/region do).
//
// The layout is declared here and nowhere else. go generate writes its C twin,
// shim/region/abi.h, with an assertion for every size and offset, and
// docs/format.md, for a reader in any other language. The comments of types,
// fields, constants and accessors are the words of that page.
//
// Rules: every structure is laid out as C lays it out (structs.HostLayout),
// fixed-width fields only, padding spelled out, every word that several
// processes write hard on a cache line of its own. A change of anything here is
// a change of Version.
package abi

import "structs"

//go:generate go run ./gen -header ../../shim/region/abi.h -page ../../docs/format.md

// Capacity of a region.
const (
	Devices  = 16   // GPUs a job can see
	Slots    = 1024 // places for processes, one of them FenceSlot; a slot number fits WordSlotBits
	Refusals = 256  // latest refusals kept
	Deaths   = 64   // latest deaths kept

	Unit     = 512  // bytes in one unit of the ledger
	PageSize = 4096 // what Limits is aligned to, so that it can be mapped by itself
	NameLen  = 64   // bytes kept of a process's name
	Holders  = 3    // largest holders kept with a refusal
)

// Identity of the file.
const (
	Magic       = 0x314e4f4954415201 // "\x01RATION1" in the file
	LimitsMagic = 0x314d494c54415201 // "\x01RATLIM1"
	TailMagic   = 0x314c494154544152 // "RATTAIL1"
	Version     = 4                  // of the layout
)

// Values of Header.State, in the order they are taken.
const (
	StateUninit     = 0 // a new file
	StateInProgress = 1 // being made
	StateComplete   = 2 // ready; only now does the rest of the file mean anything
)

// Kind says what a piece of device memory is for.
type Kind int

// The kinds, as indices into Usage.Kind.
const (
	Context  Kind = iota // what the driver takes to hold a context
	Module               // code and globals of loaded modules
	Data                 // what the program asked for
	Overhead             // what the driver reports beyond all we counted
	Kinds                // how many there are
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
	Limits   Limits                  // where no file with limits is beside the region
	Devices  [Devices]Device         // by device
	Compute  [Devices]Compute        // by device
	Status   [Slots]uint64           // by slot, packed by Status; dense, so that a scan of all slots is cheap
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
	Created uint64 // Unix nanoseconds at which the region was made
	Devices uint32 // length of Region.Devices, the constant Devices
	Slots   uint32 // length of Region.Slots, the constant Slots
	_       [2]uint64

	Ticket    uint64 // where the next claim starts looking for a free slot
	HighWater uint64 // no slot at or beyond this was ever claimed
	_         [6]uint64

	RefusalNext uint64 // ticket of the next refusal; counts all there ever were
	DeathNext   uint64 // ticket of the next death; counts all there ever were
	_           [6]uint64

	Counters Counters

	// HostPIDLock is the lock for finding a host PID in the driver's process list, one
	// process at a time: the count of turns from bit 48, the low 32 bits of the holder's
	// generation from bit 16, its slot plus one below; both zero while free.
	HostPIDLock uint64
	NVMLPIDs    uint64 `c:"nvml_pids"` // packed by NVMLPIDs; written as rarely as HostPIDLock
	_           [6]uint64

	_ [464]uint64
}

// Values of Header.Flags, set once: where the limits were when the region was made.
// A file beside the region counts wherever there is one; LimitsBeside only says that
// attaching without it is an error. No more than that may rest on a word which the
// job's processes can write.
const (
	LimitsBeside = 1 // in a file of its own, the region's path with .limits after it
	LimitsInside = 2 // in Region.Limits
)

// Counters are totals over the life of the region. Readers add to them in
// batches.
type Counters struct {
	_          structs.HostLayout
	Reads      uint64 // consistent reads asked for
	Retries    uint64 // tries beyond the first
	BestEffort uint64 // reads given up after ReadTries
	Reaped     uint64 // slots of dead processes given back
	Refused    uint64 // requests refused
	Helped     uint64 // initialisations finished for a process that was slow or had died
	Claims     uint64 // slots claimed
	Fast       uint64 // attaches that found the region complete

	Damaged uint64 // slots put out of use: what they hold cannot be
	_       [7]uint64
}

// Limits is a page of its own: inside the region where a job makes its own
// limits, or the whole of a file beside it where an operator owns them.
type Limits struct {
	_       structs.HostLayout
	Magic   uint64 // the constant LimitsMagic
	Version uint32 // the constant Version
	_       uint32
	Size    uint64 // bytes of this structure
	Changes uint64 // counts changes of limits while the job runs
	Round   uint64 // microseconds that the slices of a device's jobs last together, where their shares add up to 100; DefaultRound while zero
	_       [3]uint64

	Device [Devices]DeviceLimits // by device
	_      [248]uint64
}

// DeviceLimits is what a job may have of one device.
type DeviceLimits struct {
	_       structs.HostLayout
	Memory  uint64    // packed by Limit
	Compute uint64    // share: per cent of the device's time that the job has at least; zero while not set, ComputeNone where set to none
	UUID    [2]uint64 // the UUID's 16 bytes as two numbers, each big end first; the second is zero while unknown
	Total   uint64    // bytes the device has; zero while unknown

	ComputeMax uint64 // cap: per cent of the device's time that the job has at most; as Compute
	_          [10]uint64
}

// Device is one device's ledger.
type Device struct {
	_          structs.HostLayout
	LedgerWord uint64 // packed by LedgerWord
	_          [7]uint64

	Peak        uint64 // most units that living processes ever had at once; up to one part in PeakStep less while they grow
	Refused     uint64 // requests refused, over the life of the region
	ContextCost uint64 // packed by ContextCost; the last process that measured it wins
	Fences      uint64 // fences put into LedgerWord; the sequence of the next one
	_           [4]uint64
}

// Compute is what a job has had of one device's time, where its time has a cap.
type Compute struct {
	_   structs.HostLayout
	Due uint64 // packed by Due
	_   [7]uint64

	Used   uint64 // nanoseconds of the device's time, as measured and charged
	Waited uint64 // nanoseconds that launches waited, over all threads
	_      [6]uint64

	Parts [Parts]uint64 // packed by TimePart; a ring, by its number modulo Parts
}

// Slot is one process.
type Slot struct {
	_       structs.HostLayout
	PID     uint64 // as the process sees itself
	HostPID uint64 // packed by HostPID; filled in by any process that sees the host's PIDs
	Start   uint64 // start time in clock ticks since boot: with PID, names a process for good
	PIDNS   uint64 // inode of its PID namespace
	UID     uint64 // effective user ID
	Joined  uint64 // Unix nanoseconds at which it took the slot
	Left    uint64 // generation of an owner that has said that it ends: its end is no death
	_       uint64
	Name    [NameLen]byte // ends at the first zero byte; any other bytes may be in it
}

// Account is one slot on one device.
type Account struct {
	_     structs.HostLayout
	Phase uint64 // packed by Phase: the sequence lock
	Gen   uint64 // generation of the owner whose account this is
	A     Usage  // one copy of the usage
	Peak  uint64 // bytes: the largest A.Total so far

	B      Usage  // the other copy
	Pend   uint64 // packed by Pend
	Used   uint64 // packed by Used
	Driver uint64 // bytes the driver reports for this process; zero while unknown

	Done uint64 // sequence of the newest change known to be applied, WordSeqBits wide; written by others

	Work       uint64 // packed by Work: when the process last had work on the device; zeroed with Gen
	Slice      uint64 // packed by Slice: the time slice of its contexts; zeroed with Gen
	TimeUsed   uint64 // nanoseconds of the device's time, as measured for a cap; zeroed with Gen
	TimeWaited uint64 // nanoseconds that its launches waited for a cap; zeroed with Gen
	_          [3]uint64
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
	Sum    uint64          // exclusive or of all 64-bit words that follow: an entry torn by two writers shows
	Time   uint64          // Unix nanoseconds
	Slot   uint32          // of the process that was refused
	Device uint32          // on which
	PID    uint64          // of the process that was refused, as it sees itself
	Asked  uint64          // bytes
	Held   uint64          // bytes granted on the device at that moment
	Limit  uint64          // bytes
	Own    uint64          // bytes that the refused process held itself
	Top    [Holders]Holder // the processes that held most, the largest first; Bytes is zero where there are fewer
	_      uint64
}

// Holder is a process and what it held when a request was refused.
type Holder struct {
	_     structs.HostLayout
	PID   uint64 // as the process sees itself
	Bytes uint64 // on the refused request's device
}

// Death is one entry of the ring of recent deaths: a process that ended without
// leaving, and whose bytes another process gave back.
type Death struct {
	_       structs.HostLayout
	Seq     uint64          // 2·ticket+1 while being written, 2·ticket+2 after
	Sum     uint64          // exclusive or of all 64-bit words that follow: an entry torn by two writers shows
	Time    uint64          // Unix nanoseconds at which it was noticed
	Slot    uint32          // of the dead process
	Cause   uint32          // how it was noticed: one of the constants from CauseUnknown
	PID     uint64          // of the dead process, as it saw itself
	HostPID uint64          // packed by HostPID
	Joined  uint64          // Unix nanoseconds at which it took the slot
	Reaper  uint64          // PID of the process that noticed it, as that sees itself
	Name    [NameLen]byte   // of the dead process; ends at the first zero byte
	Held    [Devices]uint64 // bytes, by device, as it last showed them
}

// How a death was noticed: values of Death.Cause. In each case the slot's byte was
// unlocked.
const (
	CauseUnknown  = 0 // by a process that died before it had given everything back
	CauseUnseen   = 1 // the process that noticed it cannot ask for it: it was in another PID namespace
	CauseExec     = 2 // it had the same PID: it became another program
	CauseEnded    = 3 // no process has its PID
	CauseReused   = 4 // the process that has its PID started at another time
	CauseZombie   = 5 // it is a zombie
	CauseUnmapped = 6 // it does not map the region any more: it became another program
	CauseJoining  = 7 // it died while it took the slot
)

// Tail ends the file. A file that was ever cut short has lost it, also when it
// was made longer again.
type Tail struct {
	_     structs.HostLayout
	Magic uint64 // the constant TailMagic
	_     [511]uint64
}

// Bounds of the protocols, the same in both languages.
const (
	ReadTries     = 100       // consistent reads, before best effort
	ReapTries     = 4096      // steps of settling a dead process's account, before it is left to the next
	InitTimeoutNS = 5_000_000 // nanoseconds a waiter leaves to the initialiser
	DoneRefresh   = 1 << 16   // changes after which an owner rewrites its own Done
	ClaimWindow   = 64        // slots tried first; doubled when none is free
	PeakStep      = 64        // a growing device's Peak is written when it is exceeded by one part in so many
	DefaultRound  = 20_000    // microseconds: Limits.Round where none is set, or one out of bounds
	MinRound      = 1_000     // microseconds: the least Limits.Round
	MaxRound      = 200_000   // microseconds: the greatest Limits.Round
	WorkLeaseUS   = 100_000   // microseconds for which a sign of work counts
	PartNS        = 1 << 20   // nanoseconds of the clock in one TimePart
	Parts         = 1024      // latest ones kept
)
