package machine

// GPU is a device of the machine, as its driver describes it. Sizes are bytes.
type GPU struct {
	Device      int      `json:"device"` // number, as in nvidia-smi
	UUID        string   `json:"uuid"`
	Name        string   `json:"name"`
	MIG         bool     `json:"mig"`                           // divided into MIG instances
	Failed      bool     `json:"failed,omitempty"`              // the driver does not answer for it: Used is unknown, and UUID, Name and Total may be
	Total       uint64   `json:"total"`                         // size of its memory
	Used        uint64   `json:"used"`                          // by all processes and by the driver itself
	Rations     uint64   `json:"rations"`                       // sum of the limits of all unfinished jobs that do not sleep, and are not beside a policy
	Jobs        int      `json:"rationed_jobs"`                 // number of these jobs; one that may not use the device is none
	Unlimited   int      `json:"unlimited_jobs"`                // jobs that hold memory of it and have no limit on it
	Temperature *int     `json:"temperature_celsius,omitempty"` // nil if the driver does not report it
	Power       *float64 `json:"power_watts,omitempty"`         // nil if the driver does not report it
	Utilization *int     `json:"utilization_percent,omitempty"` // recent share of time with work; nil if the driver does not report it
}

// Outside is a process that the driver lists as a user of device memory, and that belongs to no
// job that was read. Its identity comes from the kernel.
type Outside struct {
	Device    int       `json:"device"`
	PID       int       `json:"pid"` // as seen from here; on the host, the host's
	UID       int       `json:"uid"` // -1 if this process cannot see it
	User      string    `json:"user"`
	Name      string    `json:"name"`
	Cgroup    string    `json:"cgroup,omitempty"`
	Container string    `json:"container,omitempty"` // as Process.Container
	Used      uint64    `json:"used"`                // bytes, as the driver counts them
	Exempt    bool      `json:"exempt,omitempty"`    // a policy exempts the user, whose programs are in no job by the operator's will
	Region    string    `json:"region,omitempty"`    // path of a region that the process has locked, of a job that was not read; only of an own process
	Local     ProcessID `json:"-"`                   // by the kernel; zero if this process cannot see it, and if it was decoded from JSON
}

// DeadRemedy is what can be done about memory that a job counts for dead processes.
const DeadRemedy = "ration ps of the job's user returns it at once, and so do an agent and the next request that needs it; memory that was exported stays until the last process that has a descriptor of it closes it or ends"

// Values of Finding.Kind.
const (
	PolicyRefused = "policy-refused" // the policy refused a user a ration in the last ten minutes, and nothing was granted since
	Overbooked    = "overbooked"     // the limits of all jobs on a device exceed its memory; jobs of a policy that allows it do not count
	OverLimit     = "over-limit"     // the driver counts more for a job than the job's limit
	Drift         = "drift"          // the driver's count for a process differs much from the job's
	Unreadable    = "unreadable"     // a job's region cannot be read
	OutsideJobs   = "outside"        // a process of no job holds much memory
	DeadProcesses = "dead"           // dead processes still count as users of memory
	ShareUnkept   = "share"          // a share of compute is not enforced
	GaveUp        = "best-effort"    // many reads of a job's accounts gave up
	Unanswering   = "not-answering"  // a user's folder of jobs could not be read in time
	Flood         = "flood"          // a user's jobs are so large that parts are left out
	DeviceFailed  = "gpu-failed"     // the driver answers a question about a device with an error
	PolicyDown    = "policy-down"    // a policy is in force, and its service does not run
	DriverSilent  = "driver-no-list" // the driver does not list the processes that hold memory
)

// Finding is a sentence that tells an operator about a problem, and what to do.
type Finding struct {
	Kind   string `json:"kind"`
	Device int    `json:"device"`         // -1 if it is about no particular device
	Job    string `json:"job,omitempty"`  // title of the job concerned
	Path   string `json:"path,omitempty"` // path of that job's region
	PID    int    `json:"pid,omitempty"`  // host PID of the process concerned
	Text   string `json:"text"`
	Remedy string `json:"remedy"`
}
