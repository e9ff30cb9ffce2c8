package abi

// Failpoint is a place between two steps of a protocol. A test build (tag faultpoints, or
// -DRATION_FAULTPOINTS in C) can be made to die or stop there; an ordinary build has no code there.
type Failpoint int

// The points, in the order in which a process reaches them.
const (
	FailpointNone Failpoint = iota

	InitOpened  // the file is open, perhaps empty
	InitSized   // it has its size, perhaps not its blocks
	InitMapped  // it is mapped; the state is not COMPLETE
	InitWon     // the state is IN_PROGRESS; nothing else is written
	InitLimits  // some limits are set
	InitFields  // everything is written; the state is not COMPLETE
	InitDone    // the state is COMPLETE
	ClaimLocked // the slot's byte is locked; the slot is free
	ClaimJoining
	ClaimFilled
	ClaimActive

	TurnTaken  // this thread has the turn; nothing is written
	ChangeRead // the account's words are read; nothing is announced
	ChangeAnnounced
	NoteRead // between reading done and swapping it
	ChangeNoted
	ChangeApplied
	ChangeBooked
	SeqlockB      // B is written, phase 1
	SeqlockTurned // phase 3
	SeqlockA      // A is written, phase 3
	TurnLeft      // phase 0 again, the turn is free

	ReadCopied // an account's usage is copied; its phase has not been read again

	RefuseTicket // a ring entry is ours; it is not written
	RefuseWritten

	ReapCondemned // the slot is condemned; nothing is settled
	ReapJudged
	ReapFenced // an unapplied charge cannot be applied any more
	ReapAnnounced
	ReapNoted
	ReapApplied
	ReapBooked
	ReapSettled
	ReapFreed
	DeathTicket // a ring entry is ours; it is not written
	DeathWritten

	LeaveReturned
	LeaveFreed
	LeaveUnlocked

	LimitSet // a limit is stored; its change is not counted

	// Only libration.so has the points from here on: of the host-PID lock,
	HostPIDTaken   // it is this process's turn; the list has not been read
	HostPIDListed  // the first list is read; the driver has not been called
	HostPIDRead    // the second list is read; the turn has not been checked again
	HostPIDChecked // the turn was ours until then; the host PID is not written
	HostPIDFound   // the host PID is written; the turn is ours
	HostPIDLeft    // the turn is given up

	// of exported memory,
	ExportShown  // the bytes are in the account; the driver has not been asked
	ExportLocked // the descriptor is locked; the program does not have it
	ExportGiven  // the lock is in the account; the program does not have the descriptor

	// of imported memory,
	ImportShown   // the region shows the import; the driver has not been asked
	ImportCharged // a reading has charged this process; the region still shows the import

	// of a device's time, and of waiting for memory.
	WorkShown   // a sign of work is shown
	CapMeasured // a batch is measured; its time is not charged
	CapCounted  // its time is counted, but not charged
	CapCharged  // its time is charged
	CapWaiting  // a launch is about to wait
	CapTaken    // the uncharged time of a process that ended is taken over; it is not charged
	CapCleared  // the words of another boot's clock are cleared; the clock is not noted

	WaitPlaced // a request has its place among those that wait
	WaitArmed  // it has asked to be woken; it has not looked for room
	WaitCalled // the word that waiters sleep on is changed; they are not woken
	WaitLeft   // its place is free

	Failpoints
)

var failpointNames = [Failpoints]string{
	"none",
	"init-opened", "init-sized", "init-mapped", "init-won", "init-limits", "init-fields", "init-done",
	"claim-locked", "claim-joining", "claim-filled", "claim-active",
	"turn-taken", "change-read", "change-announced", "note-read", "change-noted", "change-applied", "change-booked",
	"seqlock-b", "seqlock-turned", "seqlock-a", "turn-left",
	"read-copied",
	"refuse-ticket", "refuse-written",
	"reap-condemned", "reap-judged", "reap-fenced", "reap-announced", "reap-noted", "reap-applied", "reap-booked", "reap-settled", "reap-freed", "death-ticket", "death-written",
	"leave-returned", "leave-freed", "leave-unlocked",
	"limit-set",
	"hostpid-taken", "hostpid-listed", "hostpid-read", "hostpid-checked", "hostpid-found", "hostpid-left",
	"export-shown", "export-locked", "export-given",
	"import-shown", "import-charged",
	"work-shown", "cap-measured", "cap-counted", "cap-charged", "cap-waiting", "cap-taken", "cap-cleared",
	"wait-placed", "wait-armed", "wait-called", "wait-left",
}

func (p Failpoint) String() string {
	if p < 0 || p >= Failpoints {
		return "unknown"
	}
	return failpointNames[p]
}

// FailpointByName returns the point of that name, or FailpointNone.
func FailpointByName(name string) Failpoint {
	for p, n := range failpointNames {
		if n == name {
			return Failpoint(p)
		}
	}
	return FailpointNone
}
