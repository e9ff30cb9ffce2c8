package demo

import "ration/check/harness/cuda"

// Report is the outcome of a demo.
type Report struct {
	Limit    uint64   `json:"limit_bytes"`
	Workers  int      `json:"workers"`
	Context  uint64   `json:"context_bytes"` // what the context of each process takes
	Requests int64    `json:"requests"`      // of the workers that were not killed
	Refused  int64    `json:"refused"`       // of those requests; all of them had to be granted
	Slowest  int64    `json:"slowest_ns"`    // the longest driver call of a process that was not stopped
	Greedy   Request  `json:"greedy"`
	Stopped  Stop     `json:"stopped"`
	Killed   Kill     `json:"killed"`
	Readings int64    `json:"readings"`       // of the observer
	Exceeded int64    `json:"limit_exceeded"` // readings above the limit
	Most     uint64   `json:"most_bytes"`     // the highest reading, or the region's own peak
	Held     Accounts `json:"held"`           // while the workers held their memory
	End      Accounts `json:"end"`            // after the workers ended
	SMI      SMI      `json:"fake_smi"`
	Agree    bool     `json:"accounts_agree"` // all is as ration promises it
}

// Request is the request of the program that asked for too much, and its answer.
type Request struct {
	PID     int    `json:"pid"`
	Asked   uint64 `json:"asked"` // bytes
	Refused bool   `json:"refused"`
	Held    uint64 `json:"held"` // bytes, by all processes at that moment
	Why     string `json:"why"`
}

// Stop is what happened while a worker was stopped.
type Stop struct {
	PID     int   `json:"pid"`
	For     int64 `json:"for_ns"`
	Changes int64 `json:"changes"` // of the device's usage by the other workers, at least
}

// Kill is what happened to the worker that was killed.
type Kill struct {
	PID   int    `json:"pid"`
	Held  uint64 `json:"held"` // bytes
	Heir  int    `json:"heir_pid"`
	Asked uint64 `json:"heir_asked"`       // bytes
	After int64  `json:"granted_after_ns"` // from the death to the grant
}

// Accounts are three counts of the device memory in use, in bytes.
type Accounts struct {
	Granted   uint64 `json:"granted_bytes"` // in the region's ledger
	Held      uint64 `json:"held_bytes"`    // in the region, by all processes together
	Contexts  uint64 `json:"context_bytes"` // the part of Held that contexts take
	Driver    uint64 `json:"driver_bytes"`  // the driver's count
	Processes int    `json:"processes"`     // that have a slot in the region
}

// SMI is what nvidia-smi would show while the workers held their memory.
type SMI struct {
	Inside  cuda.Memory `json:"inside"` // the job
	Outside cuda.Memory `json:"outside"`
}
