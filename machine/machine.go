// Package machine reads the GPUs of a machine and the jobs of ration on them: each job's
// limits and usage, its processes, and the requests that were refused.
//
// A job is a command that `ration run` has started, with all processes that it starts.
// They share one limit for each device. The limits, and an account of each process,
// are in one file, the job's region; a slot is the number of an account. A job numbers
// its devices from 0, as nvidia-smi does where `ration run` found a driver. The memory
// of a process is of four kinds: contexts, modules (code and its variables), data (what
// the program allocated), and overhead, which the driver has taken beyond these.
//
// [Read] returns the devices and all jobs of this user, or for root those of all users.
// [ReadJob] returns one job. [Watch] returns what happens, as it happens, with the machine
// after it. What they return is a copy, which nothing changes later. They may be called by
// several goroutines at once, and need no privilege beyond reading the files.
//
// The devices come from the NVIDIA driver, through NVML. Where there is no driver, or the
// program is built without cgo, Machine.Devices is empty and all else is there.
//
// This package only reads: it writes no file, takes no lock that a job could wait for,
// and works whether anything else of ration is running or not. `ration ps --json`
// prints a [Machine], so its output can be decoded into one.
//
// What a job's region says is what the job's processes wrote. The identity of a process is
// the kernel's word if its lock names a process that this one can see (Process.Verified);
// otherwise its PID, name and user are claims.
//
// # Import
//
// The module has no address on the web. A program that uses it names a copy of the
// repository in its go.mod:
//
//	require ration v0.0.0
//	replace ration => ../ration
//
// # Compatibility
//
// An exported name of this package and a name in the JSON keep their meaning. Fields,
// functions, errors and process states may be added: name the fields in literals, and
// expect a state that you do not know. The text of errors and of sentences, and the
// order of jobs and processes, may change. Before version 1.0 of ration, a name may
// still go, and then CHANGELOG.md says so. api.txt lists the exported names; a test
// compares it with them, so nothing changes by accident.
//
// The format of regions is not part of this promise (docs/format.md has its own
// version): this package reads the version that it was built for, and returns
// [ErrVersion] for another.
package machine

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"time"

	"ration/internal/job"
	"ration/internal/region"
)

// Errors that are returned wrapped, with the path and the way out.
var (
	// ErrNoJob is returned for a name or path at which there is no job.
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
	// ErrDamaged is returned for a region whose content cannot be right.
	ErrDamaged = region.ErrDamaged
	// ErrLimits is returned when the limits beside a region cannot be used.
	ErrLimits = region.ErrLimits
)

// Machine is the jobs that this user can see, and the devices that they share.
type Machine struct {
	Folder   string    `json:"folder"`  // of this user's jobs
	Devices  []GPU     `json:"devices"` // empty where there is no driver
	Jobs     []Job     `json:"jobs"`
	Outside  []Outside `json:"outside"` // processes that hold device memory and belong to no job in Jobs
	Findings []Finding `json:"findings"`
	Hidden   int       `json:"hidden,omitempty"` // ended jobs that are not in Jobs; Read has all of them
}

// States of a job: Job.State.
const (
	Starting = "starting" // it was launched, and no process has joined it yet
	Running  = "running"  // a process that has joined it lives
	Idle     = "idle"     // its command runs, or ration create made it, and all processes that had joined it have gone
	Ended    = "ended"    // its command has ended, and no process of it lives
)

// Job is what a job's folder and its region say about the job. Sizes are bytes.
type Job struct {
	Name     string    `json:"job,omitempty"`   // empty for a region outside the folder of jobs
	Path     string    `json:"path"`            // of the region
	Owner    string    `json:"owner"`           // owner of the region; the UID if it has no name
	UID      int       `json:"uid"`             // of the owner; -1 where that is not known
	Launcher string    `json:"launcher"`        // user that launched it; empty if that is not known
	State    string    `json:"state"`           // Starting, Running, Idle or Ended, by the locks that its processes hold
	Command  []string  `json:"command"`         // with its arguments; empty where that is not known. A long one is cut
	Exit     *Exit     `json:"exit,omitempty"`  // how its command ended, where that is known
	Error    string    `json:"error,omitempty"` // why the region could not be read; then only what is above, and living processes, is known
	ReadOnly bool      `json:"read_only"`       // what dead processes hold was left as it is, as this package does
	Created  time.Time `json:"created_at,omitzero"`
	Started  time.Time `json:"started_at,omitzero"` // when its command was launched; zero where that is not known
	Ended    time.Time `json:"ended_at,omitzero"`   // zero where that is not known
	Claims   uint64    `json:"claims"`              // processes that joined since the region was created
	// Kubernetes is the claim that it was made for, and its pods; nil for any other job.
	Kubernetes *Kubernetes `json:"kubernetes,omitempty"`

	Devices   []Device   `json:"devices"` // those with a limit, and those that were ever used
	Processes []Process  `json:"processes"`
	Reaped    []Process  `json:"reaped"`   // dead; `ration ps` just returned what they held to the job
	Refusals  []Refusal  `json:"refusals"` // the newest first
	Deaths    []Death    `json:"deaths"`   // the newest first; of the latest 64
	Died      uint64     `json:"died"`     // processes that died without leaving, since the region was created
	Damaged   uint64     `json:"damaged"`  // slots that are out of use, as what they hold cannot be
	Reads     Reads      `json:"reads"`
	Omitted   *Omitted   `json:"omitted,omitempty"` // nil where all of it is there
	err       error      // the cause of Error, where this process read the region
	file      job.FileID // the region, by whatever path

	omittedPIDs []int // of omitted processes, for hostPIDs
	unwritten   int   // refusals and deaths that are being written, or whose writer was killed
}

// Kubernetes is what a job is in a cluster, as the kubelet plugin wrote it down.
type Kubernetes struct {
	Namespace string `json:"namespace"`
	Claim     string `json:"claim"` // name of the ResourceClaim
	ClaimUID  string `json:"claim_uid"`
	Pods      []Pod  `json:"pods"` // for which the claim was reserved when it was last prepared
}

// Pod is a pod that may use a job.
type Pod struct {
	Name       string   `json:"name"`
	UID        string   `json:"uid"`
	Containers []string `json:"containers"` // that use the claim; empty where that is not known
}

// String names the pods, their containers and the claim in one line: pod team/train (main), claim gpu.
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

// Exit is how a job's command ended, as its launcher wrote it down.
type Exit struct {
	Status int `json:"status"`           // 128 and the signal's number if one ended it
	Signal int `json:"signal,omitempty"` // that ended it
}

// Err returns why the region could not be read, or nil.
func (j *Job) Err() error {
	if j.err == nil && j.Error != "" {
		return errors.New(j.Error)
	}
	return j.err
}

// JobID identifies a job: a later job of the same name and path was created at another time.
type JobID struct {
	Path    string
	Created time.Time
}

// ID returns the job's identity.
func (j *Job) ID() JobID { return JobID{j.Path, j.Created} }

// Same reports whether two reads of a job differ in nothing.
func (j *Job) Same(as *Job) bool {
	a, b := *j, *as
	a.err, b.err = nil, nil // Error has its text
	return reflect.DeepEqual(&a, &b)
}

// Held returns the bytes that the job's processes hold, of all devices.
func (j *Job) Held() (bytes uint64) {
	for i := range j.Devices {
		bytes += min(j.Devices[i].Used, ^bytes)
	}
	return bytes
}

// Title returns the job's name, or its path where it has no name.
func (j *Job) Title() string { return job.Job{Name: j.Name, Path: j.Path}.Title() }

// Device is a job's use of one device. Sizes are bytes.
type Device struct {
	Device  int    `json:"device"`         // its number in this job
	UUID    string `json:"uuid,omitempty"` // of the device, as GPU.UUID; empty while unknown
	Limited bool   `json:"limited"`
	Limit   uint64 `json:"limit"` // 0 without a limit
	Used    uint64 `json:"used"`
	Peak    uint64 `json:"peak"`    // the most that was ever in use at once
	Total   uint64 `json:"total"`   // size of the device; 0 while unknown
	Refused uint64 `json:"refused"` // requests since the region was created
	Inexact bool   `json:"inexact"` // Used is not the sum of what the processes hold: they changed all the while

	Compute *Compute `json:"compute,omitempty"` // nil for a job with neither a share nor a cap there
}

// States of a process.
const (
	Live    = "live"
	Stopped = "stopped" // by a signal or a debugger
	Ending  = "ending"  // it has begun to end, or has ended and KeptBy has its files: the driver has its bytes
	Dead    = "dead"    // ended without leaving; the next request that needs its bytes gets them
)

// Process is a process of the job.
type Process struct {
	Slot      int       `json:"slot"`     // the number of its account in the region; -1 where the region could not be read
	Verified  bool      `json:"verified"` // PID, HostPID, UID, User, Name, Parent and Cgroup are the kernel's word; otherwise the process's own
	PID       int       `json:"pid"`      // in its own PID namespace
	HostPID   int       `json:"host_pid"` // 0 while unknown
	UID       int       `json:"uid"`
	User      string    `json:"user"`                // the UID where it has no name, or is only claimed
	Name      string    `json:"name"`                // of its program
	State     string    `json:"state"`               // Live, Stopped, Ending or Dead
	Parent    int       `json:"parent,omitempty"`    // host PID of the nearest process above it that is in the job; 0 for none
	KeptBy    []int     `json:"kept_by,omitempty"`   // of one that is Ending: PIDs, as seen from here, of fork children that have its files of the driver
	Cgroup    string    `json:"cgroup,omitempty"`    // its control group; empty unless Verified
	Container string    `json:"container,omitempty"` // that the control group names, as in docker/0123456789ab or slurm/JOB.STEP
	Joined    time.Time `json:"joined_at,omitzero"`
	Holdings  []Holding `json:"holdings"`
}

// Held returns the bytes that the process holds, of all devices.
func (p *Process) Held() (bytes uint64) {
	for i := range p.Holdings {
		bytes += min(p.Holdings[i].Total, ^bytes)
	}
	return bytes
}

// Holding is a process's use of one device. Sizes are bytes.
type Holding struct {
	Device     int    `json:"device"`
	Total      uint64 `json:"total"` // the sum of the next four
	Context    uint64 `json:"context"`
	Module     uint64 `json:"module"`
	Data       uint64 `json:"data"`        // allocated by the program
	Overhead   uint64 `json:"overhead"`    // taken by the driver beyond these
	Peak       uint64 `json:"peak"`        // of Total
	Driver     uint64 `json:"driver"`      // what the driver reported for the process when that was last read; 0 while unknown
	DriverNow  bool   `json:"driver_now"`  // Driver was read together with the rest, so that they can be compared
	BestEffort bool   `json:"best_effort"` // read while it changed

	Compute *ProcessCompute `json:"compute,omitempty"` // nil where Device.Compute is
	Time    *Time           `json:"time,omitempty"`    // nil while unknown: ration ps --watch and ration top measure it
}

// Reads counts the reads of accounts since the region was created.
type Reads struct {
	Reads      uint64 `json:"reads"`
	Retries    uint64 `json:"retries"`     // tries beyond the first
	BestEffort uint64 `json:"best_effort"` // given up, and taken as they were
}

// Clone returns a copy whose devices, processes and holdings can be changed.
func (m *Machine) Clone() Machine {
	out := *m
	out.Devices, out.Outside, out.Findings = slices.Clone(m.Devices), slices.Clone(m.Outside), slices.Clone(m.Findings)
	out.Jobs = slices.Clone(m.Jobs)
	for i := range out.Jobs {
		j := &out.Jobs[i]
		j.Processes = slices.Clone(j.Processes)
		for n := range j.Processes {
			j.Processes[n].Holdings = slices.Clone(j.Processes[n].Holdings)
		}
	}
	return out
}

// share replaces the jobs that are the same as in an earlier machine by those, so that the memory is used
// once and a later comparison is quick.
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
