package gpu

import (
	"errors"
	"fmt"
)

// ErrNoCheckpoint is returned if the driver cannot put the memory of a process aside.
var ErrNoCheckpoint = errors.New("the driver cannot put device memory aside (it needs version 570 or later)")

// CheckpointCall is a call by which the driver changes the state of a process.
type CheckpointCall int

// The calls. LockCall makes CUDA calls of the process wait, from the end of those under way, unless that takes
// longer than its timeout.
const (
	LockCall      CheckpointCall = iota // from ProcessRunning to ProcessLocked
	PutAsideCall                        // from ProcessLocked to ProcessAside
	BringBackCall                       // from ProcessAside to ProcessLocked; without room the process is lost
	UnlockCall                          // from ProcessLocked to ProcessRunning
)

// CheckpointState is a process's state in the driver.
type CheckpointState int

// The states.
const (
	ProcessRunning CheckpointState = iota
	ProcessLocked
	ProcessAside
	ProcessLost // it could not be brought back, and never can be
)

// CUDAError is an error code of CUDA.
type CUDAError int

// Codes of CUDA.
const (
	CUDANotInitialized  CUDAError = 3   // the process has not used CUDA
	CUDAOutOfMemory     CUDAError = 2   // for a restore: the process is lost
	CUDAOperatingSystem CUDAError = 304 // no such process, or it is another user's; or it is lost
	CUDAIllegalState    CUDAError = 401 // the call does not apply in the process's state, or another is under way
	CUDANotReady        CUDAError = 600 // the timeout of a lock: work is under way
	CUDANotSupported    CUDAError = 801 // the process has memory that cannot be put aside
)

var cudaTexts = map[CUDAError]string{
	CUDANotInitialized:  "the process has not started CUDA",
	CUDAOutOfMemory:     "out of memory",
	CUDAOperatingSystem: "the process cannot be reached: it is another user's, or has ended",
	CUDAIllegalState:    "another program is putting the process to sleep or waking it",
	CUDANotReady:        "the GPU is still working for the process",
	CUDANotSupported:    "it has memory that cannot be put aside, as managed memory",
}

func (e CUDAError) Error() string {
	if text, known := cudaTexts[e]; known {
		return text
	}
	return fmt.Sprintf("CUDA error %d", int(e))
}
