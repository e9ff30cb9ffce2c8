package demo

import "ration/internal/workload"

// Report is what happened.
type Report struct {
	Limit    uint64  `json:"limit_bytes"`
	Workers  int     `json:"workers"`
	Context  uint64  `json:"context_bytes"` // what the driver takes for each process that uses the device
	Requests int64   `json:"requests"`      // made by the workers that lived
	Refused  int64   `json:"refused"`       // of those; all of them had to fit
	Slowest  int64   `json:"slowest_ns"`
	Greedy   Refusal `json:"greedy"`
	Stopped  Stop    `json:"stopped"`
	Killed   Kill    `json:"killed"`
	Readings int64   `json:"readings"`     // by the observer
	Passed   int64   `json:"limit_passed"` // readings above the limit
	Most     uint64  `json:"most_bytes"`   // the highest reading, or what the region kept as its peak
	Held     Books   `json:"held"`         // while the living held their memory
	End      Books   `json:"end"`          // after they left
	View     *View   `json:"view"`         // null without the library
	Agree    bool    `json:"books_agree"`
}

// Refusal is what became of the greedy one.
type Refusal struct {
	PID     int    `json:"pid"`
	Asked   uint64 `json:"asked"`
	Refused bool   `json:"refused"`
	Held    uint64 `json:"held"` // by all, at that moment
	Why     string `json:"why"`
}

// Stop is what happened while one was stopped.
type Stop struct {
	PID     int   `json:"pid"`
	For     int64 `json:"for_ns"`
	Changes int64 `json:"changes"` // that the observer saw the others make, at least
}

// Kill is what happened to the one that was killed.
type Kill struct {
	PID   int    `json:"pid"`
	Held  uint64 `json:"held"`
	Heir  int    `json:"heir_pid"`
	Asked uint64 `json:"heir_asked"`
	After int64  `json:"granted_after_ns"` // the death
}

// Books are the ways to say what is granted, and who has a slot.
type Books struct {
	Word     uint64  `json:"word_bytes"`    // what the device has granted
	Sum      uint64  `json:"sum_bytes"`     // what the living hold
	Contexts uint64  `json:"context_bytes"` // of that
	Driver   *uint64 `json:"driver_bytes"`  // what the driver has given; null without one
	Slots    int     `json:"slots"`
}

// View is what a table of devices shows, as nvidia-smi would, while the living hold
// their memory.
type View struct {
	Inside  workload.Memory `json:"inside"` // the job
	Outside workload.Memory `json:"outside"`
}
