package node

import "time"

// History has the values of jobs and devices over the last minutes, as kept by an agent. All series
// have one value for each element of Times. A value is missing (null in JSON) if the job or device
// did not exist at that time.
type History struct {
	Interval time.Duration   `json:"interval_ns"` // between two times
	Times    []time.Time     `json:"times"`       // oldest first
	Devices  []DeviceHistory `json:"devices"`
	Jobs     []JobHistory    `json:"jobs"`
}

// DeviceHistory is the history of a device.
type DeviceHistory struct {
	Device      int        `json:"device"`
	Used        []*uint64  `json:"used"`    // bytes, as the driver counts them
	Rations     []*uint64  `json:"rations"` // bytes
	Utilization []*float64 `json:"utilization_percent"`
}

// JobHistory has the values of a job on one device.
type JobHistory struct {
	Job     string    `json:"job,omitempty"`
	Path    string    `json:"path"`
	Owner   string    `json:"owner"`
	UID     int       `json:"uid"`
	Created time.Time `json:"created_at"`
	Device  int       `json:"device"`  // its number in this job
	Used    []*uint64 `json:"used"`    // bytes
	Refused []*uint64 `json:"refused"` // requests, since the job was made
	Died    []*uint64 `json:"died"`    // processes, since the job was made
	Compute []*uint64 `json:"used_ns"` // nanoseconds of the device's time, where there is a cap
}
