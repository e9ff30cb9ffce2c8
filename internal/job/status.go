package job

// Status is what a job's region says about the job. Sizes are bytes.
type Status struct {
	Job       string    `json:"job,omitempty"`   // name; empty for a region outside the folder of jobs
	Path      string    `json:"path"`            // of the region
	Error     string    `json:"error,omitempty"` // why the region could not be read; then the rest is empty
	ReadOnly  bool      `json:"read_only"`       // what dead processes hold was left as it is
	Created   int64     `json:"created"`         // Unix nanoseconds
	Claims    uint64    `json:"claims"`          // processes that joined since the region was created
	Devices   []Device  `json:"devices"`         // those with a limit, and those that were ever used
	Processes []Process `json:"processes"`
	Reaped    []Process `json:"reaped"`   // dead; this read returned what they held
	Refusals  []Refusal `json:"refusals"` // the newest first
	Reads     Reads     `json:"reads"`
	err       error     // the cause of Error
}

// Err returns why the region could not be read, or nil.
func (s *Status) Err() error { return s.err }

// Device is a job's use of one device.
type Device struct {
	Device    int    `json:"device"`
	Limited   bool   `json:"limited"`
	Limit     uint64 `json:"limit"`               // 0 without a limit
	Tolerance int    `json:"tolerance_per_mille"` // of the limit; usage may exceed it by so much
	Used      uint64 `json:"used"`
	Peak      uint64 `json:"peak"`
	Total     uint64 `json:"total"`   // size of the device; 0 while unknown
	Refused   uint64 `json:"refused"` // requests since the region was created
}

// States of a process.
const (
	Live    = "live"
	Stopped = "stopped" // by a signal or a debugger
	Dead    = "dead"    // ended without leaving; the next request that needs its bytes gets them
)

// Process is a process of the job.
type Process struct {
	Slot     int       `json:"slot"`
	PID      int       `json:"pid"`      // in its own PID namespace
	HostPID  int       `json:"host_pid"` // 0 while unknown
	UID      int       `json:"uid"`
	User     string    `json:"user"`
	Name     string    `json:"name"`
	State    string    `json:"state"`  // Live, Stopped or Dead
	Joined   int64     `json:"joined"` // Unix nanoseconds
	Holdings []Holding `json:"holdings"`
}

// Holding is a process's use of one device.
type Holding struct {
	Device     int    `json:"device"`
	Total      uint64 `json:"total"`
	Context    uint64 `json:"context"`
	Module     uint64 `json:"module"`
	Data       uint64 `json:"data"`
	Overhead   uint64 `json:"overhead"`
	Peak       uint64 `json:"peak"`
	Driver     uint64 `json:"driver"`      // what the driver reports; 0 while unknown
	BestEffort bool   `json:"best_effort"` // read while it changed
}

// Reads counts the reads of accounts since the region was created.
type Reads struct {
	Reads      uint64 `json:"reads"`
	Retries    uint64 `json:"retries"`
	BestEffort uint64 `json:"best_effort"`
}
