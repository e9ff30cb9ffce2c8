package machine

// HostUse is a process's use of the host's processors and memory, as the kernel reports it.
type HostUse struct {
	Command []string `json:"command"`  // its arguments, which it can change, cut after 4 KiB; empty if they could not be read
	CPU     Time     `json:"cpu"`      // 100 percent is one processor; over the time since the last read or, at the first, since the process started
	CPUTime float64  `json:"cpu_time"` // seconds on processors since it started
	RSS     uint64   `json:"rss"`      // bytes of the host's memory that it has in use
}

// ProcessID identifies one process of this machine: a later process with the same PID has another start.
type ProcessID struct {
	PID   int    // as seen from here
	Start uint64 // clock ticks since boot; 0 if unknown
}
