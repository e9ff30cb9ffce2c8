package machine

// History is what jobs and devices had over the last minutes, as an agent keeps it. Its series
// are of the same times: values are as many as Times, and one of a time before the job was made,
// or after it had gone, is missing (null in JSON).
type History struct {
	Interval int64           `json:"interval_ns"` // between two times
	Times    []int64         `json:"times"`       // Unix nanoseconds, the earliest first
	Devices  []DeviceHistory `json:"devices"`
	Jobs     []JobHistory    `json:"jobs"`
}

// DeviceHistory is a device's.
type DeviceHistory struct {
	Device      int        `json:"device"`
	Used        []*uint64  `json:"used"`    // bytes, as the driver counts them
	Rations     []*uint64  `json:"rations"` // bytes
	Utilization []*float64 `json:"utilization_percent"`
}

// JobHistory is what a job had of one device.
type JobHistory struct {
	Job     string    `json:"job,omitempty"`
	Path    string    `json:"path"`
	Owner   string    `json:"owner"`
	UID     int       `json:"uid"`
	Created int64     `json:"created"`
	Device  int       `json:"device"`  // its number in this job
	Used    []*uint64 `json:"used"`    // bytes
	Refused []*uint64 `json:"refused"` // requests, since the job was made
	Died    []*uint64 `json:"died"`    // processes, since the job was made
	Compute []*uint64 `json:"used_ns"` // nanoseconds of the device's time, where there is a cap
}
