package abi

// The packing of the words of jobs that sleep, as in words.go.

// Values of Sleep.State: whether a job's device memory is on its devices.
const (
	Awake   = 0 // the processes change their accounts themselves
	Falling = 1 // the driver is putting the memory aside; no process changes an account, and all is still charged
	Asleep  = 2 // the memory is in the processes' host memory; a wake charges what each account shows beyond what it has booked
	Waking  = 3 // the memory is being charged; the driver has not been asked for any of it

	// All is charged, and the driver brings the memory back, or what it had put aside. From here the
	// only way leads to Awake.
	Restoring = 4
)

// Widths of Sleep.
const (
	SleepStateBits  = 8
	SleepManualBit  = 8
	SleepCountShift = 16
)

// Sleep is whether a job sleeps. Only a process that has the job's sleep lock changes it.
type Sleep uint64

// MakeSleep packs a state. count is cut to its width.
func MakeSleep(state int, manual bool, count uint64) Sleep {
	s := Sleep(uint64(state)&(1<<SleepStateBits-1) | count<<SleepCountShift)
	if manual {
		s |= 1 << SleepManualBit
	}
	return s
}

// State is Awake, Falling, Asleep, Waking or Restoring. Other values count as Asleep.
func (s Sleep) State() int { return int(s & (1<<SleepStateBits - 1)) }

// Manual is 1 if no process waits for Wanted: the job wakes by ration wake only.
func (s Sleep) Manual() uint64 { return uint64(s) >> SleepManualBit & 1 }

// Count is how often the job has begun to fall asleep.
func (s Sleep) Count() uint64 { return uint64(s) >> SleepCountShift }

// TurnsCountBits is the width of Turns.Count.
const TurnsCountBits = 16

// Turns is how many threads of a slot's owner may be changing one of its accounts, with the owner's
// generation: a process that was wrongly taken for dead does not count for the next owner. While it
// is zero and the job is not awake, none will begin.
type Turns uint64

// MakeTurns packs a number of threads.
func MakeTurns(gen, count uint64) Turns { return Turns(gen<<TurnsCountBits | count) }

// Count is the number of threads.
func (t Turns) Count() uint64 { return uint64(t) & (1<<TurnsCountBits - 1) }

// Gen has the low bits of the owner's generation.
func (t Turns) Gen() uint64 { return uint64(t) >> TurnsCountBits }

// Bits of Slot.Cannot: why a process cannot sleep now.
const (
	CannotManaged  = 1 << 0 // it has managed memory
	CannotExported = 1 << 1 // another process may use memory of this one (IPC, exported handles)
	CannotImported = 1 << 2 // it uses memory of another process
	CannotCapture  = 1 << 3 // a stream is being captured
	CannotMPS      = 1 << 4 // it is a client of MPS
	CannotDriver   = 1 << 5 // its driver cannot put memory aside (before 570)
	CannotGroup    = 1 << 6 // it has multicast memory: processes or devices work together (NCCL)
	CannotUnknown  = 1 << 7 // the library could not find out
)

// Values of Lane.State: where the device memory is that the library of a process has mapped itself, and moves itself
// (ration run --sleep-fast).
const (
	LaneNone     = 0 // there is no such memory, and no thread that moves it
	LaneIn       = 1 // on the device
	LaneDraining = 2 // the thread is asked to put it aside, and waits until the device is idle
	LaneLeaving  = 3 // the thread copies it, and then releases it
	LaneOut      = 4 // all or a part is in host memory, and the thread does nothing
	LaneComing   = 5 // the thread is asked to bring it back
)

// Values of Lane.Why: why the thread could not do what it was asked for.
const (
	LaneDone     = 0
	LaneNoMemory = 1 // the host has no memory for it
	LaneFailed   = 2 // the driver refused a copy
	LaneNoRoom   = 3 // the device has no room for it
)

// Widths of Lane.
const (
	LaneStateBits   = 8
	LaneWhyBits     = 8
	LaneNumberBits  = 16
	LaneWhyShift    = 8
	LaneNumberShift = 16
	LaneGenShift    = 32
)

// Lane is where such memory is. The process that has the job's sleep lock changes In, Draining, Leaving and Out; the
// thread changes Draining, Leaving and Coming.
type Lane uint64

// MakeLane packs a state. gen and number are cut to their widths.
func MakeLane(gen, number uint64, why, state int) Lane {
	return Lane(gen<<LaneGenShift | number&(1<<LaneNumberBits-1)<<LaneNumberShift | uint64(why)<<LaneWhyShift | uint64(state))
}

// State is one of LaneNone to LaneComing.
func (l Lane) State() int { return int(l & (1<<LaneStateBits - 1)) }

// Why is one of LaneDone to LaneNoRoom.
func (l Lane) Why() int { return int(l >> LaneWhyShift & (1<<LaneWhyBits - 1)) }

// Number counts the requests to put it aside: an answer to a request that was withdrawn does not count for the next one.
func (l Lane) Number() uint64 { return uint64(l) >> LaneNumberShift & (1<<LaneNumberBits - 1) }

// Gen has the low bits of the generation of the slot's owner.
func (l Lane) Gen() uint64 { return uint64(l) >> LaneGenShift }
