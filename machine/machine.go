// Package machine reads the GPUs of a machine and the jobs of ration on them: each job's
// limits and usage, its processes, and the requests that were refused.
//
// A job is a command that `ration run` has started, with all processes that it starts. They share
// one limit for each device. The limits, and an account of each process, are in one file, the job's
// region; a slot is the number of an account. A job numbers its devices from 0, as nvidia-smi does
// if `ration run` found a driver. A process has four kinds of memory: contexts, modules (code and
// its variables), data (allocated by the program), and overhead (taken by the driver beyond these).
//
// [Read] returns the devices and all jobs of this user, or of all users for root. [ReadJob] returns
// one job. [Watch] returns events as they happen, each with the machine after it. The results are
// copies that are never modified later. All three are safe for concurrent use, and need no
// privilege beyond reading the files.
//
// The devices come from the NVIDIA driver, through NVML. If there is no driver, or the program is
// built without cgo, only Machine.Devices is empty.
//
// This package only reads. It writes no file, takes no lock that a job could wait for, and needs no
// other part of ration to be running. `ration ps --json` prints a [Machine], so its output can be
// decoded into one.
//
// The content of a region was written by the job's own processes. The identity of a process is
// confirmed by the kernel if the process holds its lock and this process can see it
// (Process.Verified). Otherwise its PID, name and user are only claims.
//
// # Import
//
// The module is not published on the web. A program that uses it names a copy of the repository in
// its go.mod:
//
//	require ration v0.0.0
//	replace ration => ../ration
//
// # Compatibility
//
// The exported names of this package and the names in the JSON keep their meaning. Fields,
// functions, errors and process states may be added: name the fields in literals, and expect
// unknown states. The text of errors and of sentences, and the order of jobs and processes, may
// change. Before version 1.0 a name may still be removed; CHANGELOG.md says so then. api.txt lists
// the exported names, and a test compares it with the code, so that nothing changes by accident.
//
// The format of regions is not part of this promise; docs/format.md has a version of its own. This
// package reads the version that it was built for, and returns [ErrVersion] for any other.
package machine

import (
	"cmp"
	"errors"
	"reflect"
	"slices"
	"strings"
	"time"

	"ration/internal/job"
	"ration/internal/region"
)

// Errors of this package. They are returned wrapped, with the path and what to do.
var (
	// ErrNoJob is returned if no job has that name or path.
	ErrNoJob = job.ErrNoJob
	// ErrFolder is returned for a folder of jobs that another user could have made.
	ErrFolder = job.ErrFolder
	// ErrNotReady is returned for a region that is empty or still being made.
	ErrNotReady = region.ErrInit
	// ErrForeign is returned for a file that is not a region.
	ErrForeign = region.ErrForeign
	// ErrVersion is returned for a region of another version of the format.
	ErrVersion = region.ErrVersion
	// ErrSize is returned for a region that was cut short or made longer.
	ErrSize = region.ErrSize
	// ErrDamaged is returned for a region with impossible content.
	ErrDamaged = region.ErrDamaged
	// ErrLimits is returned if the file of limits beside a region cannot be used.
	ErrLimits = region.ErrLimits
)

// Machine has the jobs that this user can see, and the devices that they share.
type Machine struct {
	Folder   string    `json:"folder"`  // folder of this user's jobs
	Devices  []GPU     `json:"devices"` // empty if there is no driver
	Jobs     []Job     `json:"jobs"`
	Outside  []Outside `json:"outside"` // processes that hold device memory and belong to no job in Jobs
	Findings []Finding `json:"findings"`
	Denied   []Denied  `json:"policy_refusals,omitempty"` // rations that the policy refused: of all users for root, else this user's; oldest first
	Waiting  []Waiting `json:"waiting,omitempty"`         // commands that wait for room, in the order of each user's queue
	Hidden   int       `json:"hidden,omitempty"`          // ended jobs that are left out of Jobs; Read returns all

	// Removed are jobs that the policy's service has removed, as their regions were then: they may have refusals and deaths
	// that nobody has read. Only root has them, and not from JSON.
	Removed []Job `json:"-"`

	// Elsewhere are jobs in no folder of jobs that are on no device of this machine, as those of a stand-in driver or of a
	// benchmark. They hold nothing of Devices. Only root has them, and not from JSON.
	Elsewhere []Job `json:"-"`

	// Escapes are the operator's jobs that are over their limits. Only a process that has read the machine
	// itself has them.
	Escapes []Escape `json:"-"`
}

// Values of Job.State.
const (
	Starting = "starting" // the command was started less than five minutes ago, and no process has joined the job yet
	Running  = "running"  // a process of the job is alive
	Idle     = "idle"     // no process of the job uses a GPU: none is alive or has joined for five minutes, though the command runs or ration create made the job; or, if an agent runs, they do nothing there (Job.IdleSince)
	Ended    = "ended"    // the command and all processes of the job have ended
)

// Values of Job.Sleep.
const (
	FallingAsleep = "falling asleep" // the driver is putting its device memory aside
	Asleep        = "asleep"         // its device memory is in the host memory of its processes; its limits count for no other job
	Waking        = "waking"         // its device memory is being brought back
)

// LeavesRoom reports whether the job sleeps, so that its limits count for no other job. That it sleeps is the word of
// its processes, which does not count against the driver's: the driver counts no memory of a process that sleeps.
func (j *Job) LeavesRoom() bool {
	return j.Sleep == Asleep && !slices.ContainsFunc(j.Devices, func(d Device) bool { return d.Driver > minDrift })
}

// Job is a job, as described by its folder and its region. Sizes are bytes.
type Job struct {
	Name      string    `json:"job,omitempty"`          // empty for a region outside the folder of jobs
	Path      string    `json:"path"`                   // path of the region
	Owner     string    `json:"owner"`                  // owner of the region; the UID if it has no name
	UID       int       `json:"uid"`                    // the owner's UID; -1 if unknown
	Launcher  string    `json:"launcher"`               // user that started it; empty if unknown
	Placed    string    `json:"placed,omitempty"`       // why the job is on its devices and not on others; empty if it may use all
	State     string    `json:"state"`                  // Starting, Running, Idle or Ended, from the locks that its processes hold
	Command   []string  `json:"command"`                // with its arguments; empty if unknown. A long command is cut
	Exit      *Exit     `json:"exit,omitempty"`         // how its command ended, if known
	NoExit    bool      `json:"exit_unknown,omitempty"` // it has ended, and its ration run was killed before it could record how
	Error     string    `json:"error,omitempty"`        // why the region could not be read; then only the fields above and living processes are known
	Elsewhere bool      `json:"elsewhere,omitempty"`    // it is one of Machine.Elsewhere
	ReadOnly  bool      `json:"read_only"`              // the job could not be read, or has dead processes whose memory was not returned to it
	Created   time.Time `json:"created_at,omitzero"`
	Started   time.Time `json:"started_at,omitzero"` // when its command was started; zero if unknown
	Ended     time.Time `json:"ended_at,omitzero"`   // when the last process ended; zero if unknown
	// CommandEnded is when the job's command ended, if processes of the job outlived it: then Ended is unknown.
	CommandEnded time.Time `json:"command_ended_at,omitzero"`
	// IdleSince is since when the job's processes hold memory and have done nothing on any device; zero if they
	// work, or if that is unknown. Only an agent knows it, and says so after ten minutes, or what its operator chose.
	IdleSince time.Time         `json:"idle_since,omitzero"`
	IdleAbout bool              `json:"idle_about,omitempty"`     // IdleSince is by the driver's samples, in which very little work does not show
	Labels    map[string]string `json:"labels,omitempty"`         // chosen by the user (ration run --label)
	Claimed   bool              `json:"labels_claimed,omitempty"` // a policy is in force, and the labels are a claim of the user, which no rule of it allows
	Priority  string            `json:"priority,omitempty"`       // high or low; empty for normal
	// NoPriority is why the priority has no effect now; empty if it has, or if that is unknown. Whether another job is there
	// that it is for is known only to root and its agent.
	NoPriority string `json:"priority_without_effect,omitempty"`
	Sleep      string `json:"sleep,omitempty"`  // FallingAsleep, Asleep or Waking; empty if the job is awake
	Sleeps     uint64 `json:"sleeps,omitempty"` // how often it has begun to fall asleep
	// SleepSince is since when Sleep is as it is: for a job that is awake, when it woke. Zero if it has never slept.
	SleepSince time.Time `json:"sleep_since,omitzero"`
	// RationLent means that the job sleeps, and that the policy has lent its ration to other users. It wakes when there is room
	// for the ration again.
	RationLent bool `json:"ration_lent,omitempty"`
	// SleepAfter is for how many milliseconds the job does nothing on its devices before it falls asleep; 0 if it does
	// not fall asleep by itself, or if no process watches it. Of a rule of the policy only `ration ps` knows.
	SleepAfter uint64 `json:"sleep_after_ms,omitempty"`
	// UnusedSince is since when a job that may fall asleep has done nothing on its devices, as the process that watches
	// it says; zero if it works, or if that is unknown.
	UnusedSince time.Time `json:"unused_since,omitzero"`
	// CannotSleep is why a job that should have fallen asleep could not, as the process that watches it says.
	CannotSleep string `json:"cannot_sleep,omitempty"`
	WaitAlloc   uint64 `json:"wait_alloc_ms,omitempty"` // milliseconds that a request waits for memory of the job at most; 0 if it does not wait
	Claims      uint64 `json:"claims"`                  // processes that joined since the region was created
	// Kubernetes describes the claim that the job was made for, and its pods; nil for other jobs.
	Kubernetes *Kubernetes `json:"kubernetes,omitempty"`

	Devices   []Device   `json:"devices"` // devices with a limit, and devices that were ever used
	Processes []Process  `json:"processes"`
	Reaped    []Process  `json:"reaped"`   // dead processes whose memory `ration ps` has just returned to the job
	Refusals  []Refusal  `json:"refusals"` // newest first
	Deaths    []Death    `json:"deaths"`   // newest first; at most the latest 64
	Died      uint64     `json:"died"`     // processes that died without leaving, since the region was created
	Damaged   uint64     `json:"damaged"`  // slots that are out of use because their content is impossible
	Reads     Reads      `json:"reads"`
	Omitted   *Omitted   `json:"omitted,omitempty"` // nil if nothing was left out
	err       error      // the error that Error was made from, if this process read the region
	byLock    bool       // it was found by its lock, and in no folder of jobs
	file      job.FileID // identity of the region's file, whatever its path

	// version is the number of the read that found the job in its present state, in this process; 0 if it was
	// not read by a scanner. Two jobs with the same number differ at most in what the driver counts, and in
	// whether an agent has found that they are idle.
	version     uint64
	omittedPIDs []int  // PIDs of omitted processes, for driverPIDs
	own         Reads  // the part of Reads that this process has just made
	countedIn   string // for a record of a command under a policy: the path of the region that counts it, or did
	ranAs       string // for the record of a run that has a copy of its region: the path of the run's own region, which may be gone
	unwritten   int    // refusals and deaths that are still being written, or whose writer was killed
}

// Kubernetes describes a job's part in a cluster, as recorded by the kubelet plugin.
type Kubernetes struct {
	Namespace string `json:"namespace"`
	Claim     string `json:"claim"` // name of the ResourceClaim
	ClaimUID  string `json:"claim_uid"`
	Pods      []Pod  `json:"pods"` // pods that the claim was reserved for when it was last prepared
}

// Pod is a pod that may use a job.
type Pod struct {
	Name       string   `json:"name"`
	UID        string   `json:"uid"`
	Containers []string `json:"containers"` // containers that use the claim; empty if unknown
}

// String describes the pods, their containers and the claim: pod team/train (main), claim gpu.
func (k *Kubernetes) String() string {
	var pods []string
	for _, p := range k.Pods {
		text := k.Namespace + "/" + p.Name
		if len(p.Containers) > 0 {
			text += " (" + strings.Join(p.Containers, ", ") + ")"
		}
		pods = append(pods, text)
	}
	switch len(pods) {
	case 0:
		return "claim " + k.Namespace + "/" + k.Claim
	case 1:
		return "pod " + pods[0] + ", claim " + k.Claim
	}
	return "pods " + strings.Join(pods, ", ") + ", claim " + k.Claim
}

// Exit is how a job's command ended, as recorded by its launcher.
type Exit struct {
	Status int `json:"status"`           // exit status; 128 plus the signal's number after a signal
	Signal int `json:"signal,omitempty"` // signal that ended the command
}

// Err returns why the region could not be read, or nil.
func (j *Job) Err() error {
	if j.err == nil && j.Error != "" {
		return errors.New(j.Error)
	}
	return j.err
}

// JobID identifies a job. A later job with the same name and path has another creation time.
type JobID struct {
	Path    string
	Created time.Time
}

// ID returns the job's identity.
func (j *Job) ID() JobID { return JobID{cmp.Or(j.ranAs, j.Path), j.Created} }

// Same reports whether two reads of a job are equal, apart from the number of reads. It is quick for a job
// that has not changed between two scans, and does not notice a change that the caller made.
func (j *Job) Same(as *Job) bool {
	if j.version != 0 && j.version == as.version {
		return j.State == as.State && j.NoPriority == as.NoPriority && j.IdleSince.Equal(as.IdleSince) && j.IdleAbout == as.IdleAbout && slices.Equal(j.Devices, as.Devices) && slices.EqualFunc(j.Processes, as.Processes, func(p, q Process) bool {
			return slices.Equal(p.Holdings, q.Holdings)
		})
	}
	a, b := *j, *as
	a.err, b.err, a.version, b.version = nil, nil, 0, 0 // Error has the text of err
	a.Reads, b.Reads, a.own, b.own = Reads{}, Reads{}, Reads{}, Reads{}
	return reflect.DeepEqual(&a, &b)
}

// Held returns the bytes that the job's processes hold, on all devices.
func (j *Job) Held() (bytes uint64) {
	for i := range j.Devices {
		bytes += min(j.Devices[i].Used, ^bytes)
	}
	return bytes
}

// Aside returns the bytes that were put aside because the job sleeps, on all devices.
func (j *Job) Aside() (bytes uint64) {
	for i := range j.Devices {
		bytes += min(j.Devices[i].Aside, ^bytes)
	}
	return bytes
}

// Title returns the job's name, or its path if it has no name.
func (j *Job) Title() string { return cmp.Or(j.Name, j.Path) }

// Device is a job's use of one device. Sizes are bytes.
type Device struct {
	Device  int    `json:"device"`         // its number in this job
	UUID    string `json:"uuid,omitempty"` // as in GPU.UUID; empty if unknown
	Limited bool   `json:"limited"`
	Limit   uint64 `json:"limit"` // 0 means no limit
	Used    uint64 `json:"used"`
	Peak    uint64 `json:"peak"`    // the highest use so far
	Total   uint64 `json:"total"`   // size of the device; 0 if unknown
	Refused uint64 `json:"refused"` // refused requests since the region was created
	// Driver is the driver's count for the job's processes, which are those that the kernel confirms; 0 if it
	// is unknown. Under a policy it includes the user's processes outside the job, Escaped.
	Driver  uint64 `json:"driver,omitempty"`
	Escaped uint64 `json:"escaped,omitempty"`
	// EscapedElsewhere is what such processes hold on devices of the machine that the job does not have. It counts
	// for the limit, and is no part of Driver: this device does not hold it.
	EscapedElsewhere uint64 `json:"escaped_elsewhere,omitempty"`

	Aside   uint64 `json:"aside,omitempty"` // put aside into host memory, because the job sleeps; not part of Used
	Inexact bool   `json:"inexact"`         // Used is not the sum of the processes' memory, because they changed it during every try to read it

	Compute *Compute `json:"compute,omitempty"` // nil for a job with neither a share nor a cap on the device
}

// Values of Process.State.
const (
	Live    = "live"
	Stopped = "stopped" // by a signal or a debugger
	Ending  = "ending"  // it is ending, or has ended and the processes in KeptBy keep its driver files open, so the driver still holds its memory
	Dead    = "dead"    // ended without leaving; the next request that needs its memory gets it, unless it is Lent
)

// Process is a process of the job.
type Process struct {
	Slot        int       `json:"slot"`     // number of its account in the region; -1 if the region could not be read
	Verified    bool      `json:"verified"` // PID, HostPID, UID, User, Name, Parent and Cgroup come from the kernel; otherwise the process claims them
	PID         int       `json:"pid"`      // in its own PID namespace
	HostPID     int       `json:"host_pid"` // 0 if unknown
	UID         int       `json:"uid"`
	User        string    `json:"user"`                   // the UID if it has no name or is only claimed
	Name        string    `json:"name"`                   // name of its program
	State       string    `json:"state"`                  // Live, Stopped, Ending or Dead
	CannotSleep string    `json:"cannot_sleep,omitempty"` // why the process cannot sleep now, as it claims; empty if it can
	Lent        bool      `json:"lent,omitempty"`         // it is Dead, and its exported memory stays charged: other processes may hold it
	Parent      int       `json:"parent,omitempty"`       // host PID of its nearest ancestor in the job; 0 if none
	KeptBy      []int     `json:"kept_by,omitempty"`      // if it is Ending: PIDs of fork children that keep its driver files open, as seen from here
	Cgroup      string    `json:"cgroup,omitempty"`       // its cgroup; empty unless Verified
	Container   string    `json:"container,omitempty"`    // container that the cgroup belongs to, as in docker/0123456789ab or slurm/JOB.STEP
	Joined      time.Time `json:"joined_at,omitzero"`
	Holdings    []Holding `json:"holdings"`
	Waits       []Wait    `json:"waits,omitempty"` // requests of the process that wait for memory of the job, as the process claims
	Host        *HostUse  `json:"host,omitempty"`  // nil if unknown; only ration ps JOB, ration ps --long, ration inspect and ration top read it
	Local       ProcessID `json:"-"`               // by the kernel; zero unless Verified, and if it was decoded from JSON

	mps bool // it is a client of MPS, as it claims
}

// Wait is a request that waits for memory of the job.
type Wait struct {
	Device int       `json:"device"`
	Bytes  uint64    `json:"bytes"`
	Since  time.Time `json:"since,omitzero"`
}

// Held returns the bytes that the process holds, on all devices.
func (p *Process) Held() (bytes uint64) {
	for i := range p.Holdings {
		bytes += min(p.Holdings[i].Total, ^bytes)
	}
	return bytes
}

// Holding is a process's use of one device. Sizes are bytes.
type Holding struct {
	Device     int    `json:"device"`
	Total      uint64 `json:"total"` // sum of the next four
	Context    uint64 `json:"context"`
	Module     uint64 `json:"module"`
	Data       uint64 `json:"data"`            // allocated by the program
	Overhead   uint64 `json:"overhead"`        // taken by the driver beyond the other three
	Peak       uint64 `json:"peak"`            // highest Total
	Exported   uint64 `json:"exported"`        // of Total: exported and not returned, so other processes may hold it, also after the end of this one
	Driver     uint64 `json:"driver"`          // the driver's count for the process when it was last read; 0 if unknown
	DriverNow  bool   `json:"driver_now"`      // Driver was read together with the other fields, so it can be compared with them
	Aside      uint64 `json:"aside,omitempty"` // put aside into host memory, because the job sleeps; not part of Total
	BestEffort bool   `json:"best_effort"`     // the process changed its account during every try to read it

	Compute *ProcessCompute `json:"compute,omitempty"` // nil if Device.Compute is nil
	Time    *Time           `json:"time,omitempty"`    // nil if unknown; only ration ps --watch and ration top measure it
}

// Reads counts the reads of accounts since the region was created: those of the job's processes, and
// those of the process that shows them.
type Reads struct {
	Reads      uint64 `json:"reads"`
	Retries    uint64 `json:"retries"`     // tries after the first
	BestEffort uint64 `json:"best_effort"` // reads that gave up and used an inconsistent account

	BestEffortRatio float64 `json:"best_effort_ratio"` // BestEffort of Reads: at most 1, and 0 without reads
}

// and returns the sum of two counts.
func (r Reads) and(more Reads) Reads {
	sum := Reads{Reads: r.Reads + more.Reads, Retries: r.Retries + more.Retries, BestEffort: r.BestEffort + more.BestEffort}
	if sum.Reads > 0 { // the job's processes can write any number of each
		sum.BestEffortRatio = min(1, float64(sum.BestEffort)/float64(sum.Reads))
	}
	return sum
}

// Clone returns a copy whose devices, processes and holdings may be modified.
func (m *Machine) Clone() Machine {
	out := *m
	out.Devices, out.Outside, out.Findings = slices.Clone(m.Devices), slices.Clone(m.Outside), slices.Clone(m.Findings)
	out.Jobs = slices.Clone(m.Jobs)
	for i := range out.Jobs {
		j := &out.Jobs[i]
		j.Devices, j.Processes = slices.Clone(j.Devices), slices.Clone(j.Processes)
		for n := range j.Processes {
			j.Processes[n].Holdings = slices.Clone(j.Processes[n].Holdings)
		}
	}
	return out
}

// share replaces each job that is equal to one in an earlier machine by that earlier one. This
// saves memory, and makes later comparisons fast.
func (m *Machine) share(before *Machine) {
	if before == nil {
		return
	}
	was := make(map[JobID]*Job, len(before.Jobs))
	for i := range before.Jobs {
		was[before.Jobs[i].ID()] = &before.Jobs[i]
	}
	for i := range m.Jobs {
		if b := was[m.Jobs[i].ID()]; b != nil && m.Jobs[i].Same(b) {
			m.Jobs[i] = *b
		}
	}
}
