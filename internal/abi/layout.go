// Package abi declares the layout of a region: the one file that all processes
// of a job map. It holds types, constants and the packing of words; it touches
// no memory and knows no protocol (docs/protocols.md, internal/region and
// shim/region do).
//
// The layout is declared here and nowhere else. go generate writes its C twin,
// shim/region/abi.h, with an assertion for every size and offset.
//
// Rules: fixed-width fields only, padding spelled out, every word that several
// processes write hard on a cache line of its own. A change of anything here is
// a change of Version.
package abi

//go:generate go run ./gen -o ../../shim/region/abi.h

// Capacity of a region.
const (
	Devices  = 16   // GPUs a job can see
	Slots    = 1024 // processes at a time; a slot number fits WordSlotBits
	Refusals = 256  // latest refusals kept

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
	Version     = 2
)

// Values of Header.State, in the order they are taken.
const (
	StateUninit     = 0
	StateInProgress = 1
	StateComplete   = 2
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
	Header   Header
	Limits   Limits
	Devices  [Devices]Device
	Compute  [Devices]Compute
	Status   [Slots]uint64 // packed by Status; dense, so that a scan of all slots is cheap
	Slots    [Slots]Slot
	Refusals [Refusals]Refusal
	Accounts [Devices][Slots]Account
	Tail     Tail
}

// Header is the first page.
type Header struct {
	Magic   uint64 // Magic; checked before the file is mapped
	Version uint32
	Flags   uint32 // LimitsBeside or LimitsInside
	Size    uint64 // of the file
	State   uint64 // StateUninit, StateInProgress, StateComplete
	Created uint64 // Unix nanoseconds
	Devices uint32
	Slots   uint32
	_       [2]uint64

	Ticket    uint64 // where the next claim starts looking for a free slot
	HighWater uint64 // no slot at or beyond this was ever claimed
	_         [6]uint64

	RefusalNext uint64 // ticket of the next entry in Refusals
	_           [7]uint64

	Counters Counters

	// HostPIDLock is the lock for finding a host PID in the driver's process list, one
	// process at a time: (slot+1, ticket).
	HostPIDLock uint64
	NVMLPIDs    uint64 `c:"nvml_pids"` // packed by NVMLPIDs; written as rarely as HostPIDLock
	_           [6]uint64

	_ [472]uint64
}

// Values of Header.Flags, set once: where the limits live. Beside means in a file
// of an operator's, and that attaching without it is an error.
const (
	LimitsBeside = 1
	LimitsInside = 2
)

// Counters are totals over the life of the region. Readers add to them in
// batches.
type Counters struct {
	Reads      uint64 // consistent reads asked for
	Retries    uint64 // tries beyond the first
	BestEffort uint64 // reads given up after ReadTries
	Reaped     uint64 // slots of dead processes given back
	Refused    uint64 // requests refused
	Helped     uint64 // initialisations finished for somebody else
	Claims     uint64 // slots claimed
	Fast       uint64 // attaches that found the region complete
}

// Limits is a page of its own: inside the region where a job makes its own
// limits, or the whole of a file beside it where an operator owns them.
type Limits struct {
	Magic   uint64
	Version uint32
	_       uint32
	Size    uint64
	Changes uint64 // counts live changes
	_       [4]uint64

	Device [Devices]DeviceLimits
	_      [248]uint64
}

// DeviceLimits is what a job may have of one device.
type DeviceLimits struct {
	Memory  uint64    // packed by Limit; zero while nobody has set it
	Compute uint64    // per cent of the device's time; zero while nobody has set it
	UUID    [2]uint64 // the device's UUID, big end first; zero while unknown
	Total   uint64    // bytes the device has; zero while unknown
	_       [11]uint64
}

// Device is one device's ledger.
type Device struct {
	LedgerWord uint64 // packed by LedgerWord
	_          [7]uint64

	Peak        uint64 // most units ever granted at once
	Refused     uint64
	ContextCost uint64 // packed by ContextCost: what a process's first context takes; the last who measured it wins
	_           [5]uint64
}

// Compute is room for the rationing of compute time.
type Compute struct {
	_ [16]uint64
}

// Slot is one process.
type Slot struct {
	PID     uint64 // as the process sees itself
	HostPID uint64 // packed by HostPID; filled in by whoever looks from the host
	Start   uint64 // start time in clock ticks since boot: with PID, names a process for good
	PIDNS   uint64 // inode of its PID namespace
	UID     uint64
	Joined  uint64 // Unix nanoseconds
	_       [2]uint64
	Name    [NameLen]byte
}

// Account is one slot on one device.
type Account struct {
	Turn uint64 // count and phase
	Gen  uint64 // generation of the owner whose figures these are
	A    Usage
	Peak uint64 // largest A.Total so far

	B      Usage
	Pend   uint64 // packed by Pend
	Used   uint64 // packed by Used
	Driver uint64 // what the driver reports for this process

	Done uint64 // sequence, WordSeqBits wide; written by others
	_    [7]uint64
}

// Usage are bytes by kind and their sum.
type Usage struct {
	Total uint64
	Kind  [Kinds]uint64
}

// Refusal is one entry of the ring of recent refusals.
type Refusal struct {
	Seq    uint64 // 2·ticket+1 while being written, 2·ticket+2 after
	Sum    uint64 // exclusive or of all that follows: an entry torn by two writers shows
	Time   uint64 // Unix nanoseconds
	Slot   uint32
	Device uint32
	PID    uint64
	Asked  uint64 // bytes
	Held   uint64 // bytes granted on the device at that moment
	Limit  uint64 // bytes
	Own    uint64 // bytes the asker itself held
	Top    [Holders]Holder
	_      uint64
}

// Holder is a process and what it held when somebody else was refused.
type Holder struct {
	PID   uint64
	Bytes uint64
}

// Tail ends the file. A file that was ever cut short has lost it, also when it
// was made longer again.
type Tail struct {
	Magic uint64 // TailMagic
	_     [511]uint64
}

// Bounds of the protocols, the same in both languages.
const (
	ReadTries    = 100            // consistent reads, before best effort
	InitPatience = 5_000_000      // nanoseconds a waiter leaves to the initialiser
	TurnBound    = 10_000_000_000 // nanoseconds a turn may stand still
	DoneRefresh  = 1 << 16        // changes after which an owner rewrites its own Done
	ClaimWindow  = 64             // slots tried first; doubled when none is free
)
