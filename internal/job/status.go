package job

// Status is all that a region says about a job. Sizes are bytes.
type Status struct {
	Job       string    `json:"job,omitempty"` // empty for a region outside the folder of jobs
	Path      string    `json:"path"`
	Error     string    `json:"error,omitempty"` // why nothing else is here
	ReadOnly  bool      `json:"read_only"`       // dead processes were left as they are
	Created   int64     `json:"created"`         // Unix nanoseconds
	Claims    uint64    `json:"claims"`          // how often a process joined, over the life of the region
	Devices   []Device  `json:"devices"`         // that have a limit, or were ever used
	Processes []Process `json:"processes"`
	Reaped    []Process `json:"reaped"` // dead; what they held was given back by this look
	Refusals  []Refusal `json:"refusals"`
	Reads     Reads     `json:"reads"`
	err       error
}

// Err is why the region could not be read; nil if it was.
func (s *Status) Err() error { return s.err }

// Device is what a job has of one device.
type Device struct {
	Device    int    `json:"device"`
	Limited   bool   `json:"limited"`
	Limit     uint64 `json:"limit"`               // 0 where there is none
	Tolerance int    `json:"tolerance_per_mille"` // by which usage may pass it
	Used      uint64 `json:"used"`
	Peak      uint64 `json:"peak"`
	Total     uint64 `json:"total"`   // that the device has; 0 while unknown
	Refused   uint64 `json:"refused"` // requests, over the life of the region
}

// States of a process.
const (
	Live    = "live"
	Stopped = "stopped" // by a signal or a debugger
	Dead    = "dead"    // ended without leaving; its bytes go to whoever needs them
)

// Process is one that has, or had, a slot.
type Process struct {
	Slot     int       `json:"slot"`
	PID      int       `json:"pid"`      // as it sees itself
	HostPID  int       `json:"host_pid"` // 0 while unknown
	UID      int       `json:"uid"`
	User     string    `json:"user"`
	Name     string    `json:"name"`
	State    string    `json:"state"`  // live, stopped or dead
	Joined   int64     `json:"joined"` // Unix nanoseconds
	Holdings []Holding `json:"holdings"`
}

// Holding is what a process has of one device.
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

// Refusal is a request that was turned down.
type Refusal struct {
	Time   int64    `json:"time"` // Unix nanoseconds
	Device int      `json:"device"`
	Slot   int      `json:"slot"`
	PID    int      `json:"pid"`
	Asked  uint64   `json:"asked"`
	Held   uint64   `json:"held"` // by all, at that moment
	Limit  uint64   `json:"limit"`
	Own    uint64   `json:"own"` // by the asker itself
	Top    []Holder `json:"top"`
}

// Holder is a process that held much when another was refused.
type Holder struct {
	PID   int    `json:"pid"`
	Bytes uint64 `json:"bytes"`
}

// Reads is how reading went over the life of the region.
type Reads struct {
	Reads      uint64 `json:"reads"`
	Retries    uint64 `json:"retries"`
	BestEffort uint64 `json:"best_effort"`
}
