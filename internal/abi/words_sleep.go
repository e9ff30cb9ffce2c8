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
