package machine

// GPU is a device of the machine, as its driver describes it. Sizes are bytes.
type GPU struct {
	Device      int      `json:"device"` // its number, as nvidia-smi gives it
	UUID        string   `json:"uuid"`
	Name        string   `json:"name"`
	MIG         bool     `json:"mig"`                           // divided into MIG devices
	Total       uint64   `json:"total"`                         // size of its memory
	Used        uint64   `json:"used"`                          // by all processes, and by the driver itself
	Rations     uint64   `json:"rations"`                       // limits of all jobs that have not ended, together
	Jobs        int      `json:"rationed_jobs"`                 // that have those limits
	Unlimited   int      `json:"unlimited_jobs"`                // that hold memory of it, and have no limit there
	Temperature *int     `json:"temperature_celsius,omitempty"` // nil where the driver does not say
	Power       *float64 `json:"power_watts,omitempty"`         // nil where the driver does not say
	Utilization *int     `json:"utilization_percent,omitempty"` // time with work, lately; nil where the driver does not say
}

// Outside is a process that holds memory of a device and belongs to no job, by the driver's
// list. Who it is, the kernel says.
type Outside struct {
	Device    int    `json:"device"`
	PID       int    `json:"pid"` // on the host
	UID       int    `json:"uid"` // -1 where it cannot be seen from here
	User      string `json:"user"`
	Name      string `json:"name"`
	Cgroup    string `json:"cgroup,omitempty"`
	Container string `json:"container,omitempty"` // as Process.Container
	Used      uint64 `json:"used"`                // bytes, as the driver counts them
}

// Kinds of findings: Finding.Kind.
const (
	Overbooked    = "overbooked"     // the limits of all jobs on a device are more than the device
	Drift         = "drift"          // the driver counts much more, or less, for a process than its job
	Unreadable    = "unreadable"     // a job's region cannot be read
	OutsideJobs   = "outside"        // a process that belongs to no job holds much
	DeadProcesses = "dead"           // dead processes still count
	ShareUnkept   = "share"          // a share of compute is not enforced
	Unanswering   = "not-answering"  // a user's folder of jobs could not be read in time
	Flood         = "flood"          // a user's jobs have so much in them that some is left out
	DriverSilent  = "driver-no-list" // the driver does not say which processes hold memory
)

// Finding is something that an operator should know, in a sentence, with what to do.
type Finding struct {
	Kind   string `json:"kind"`
	Device int    `json:"device"`         // -1 where it is of no device in particular
	Job    string `json:"job,omitempty"`  // title of the job that it is of
	Path   string `json:"path,omitempty"` // of that job's region
	PID    int    `json:"pid,omitempty"`  // on the host; of the process that it is of
	Text   string `json:"text"`
	Remedy string `json:"remedy"`
}
