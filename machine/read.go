package machine

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/abi"
	"ration/internal/gpu"
	"ration/internal/job"
	"ration/internal/proc"
	"ration/internal/region"
	"ration/internal/safepath"
	"ration/internal/termtext"
)

// Read reads the devices, this user's jobs, and the region that CUDA_DEVICE_MEMORY_SHARED_CACHE
// names if it exists. As root it reads the jobs of all users, unless RATION_DIR names one folder.
// Then Findings name each user whose folder does not respond within two seconds, and each user
// whose jobs are shortened (Omitted). A region that cannot be read is a Job with an Error. Jobs
// that were removed during the read, or have not started, are left out. Read returns an error if
// the jobs could not be listed.
//
// Starting NVML takes about 50 ms. A program that reads repeatedly should use [Watch].
func Read() (Machine, error) {
	var session gpu.Session
	defer session.Close()
	s := newScanner(job.ScanOptions{Once: true, Driver: &session})
	defer s.Close()
	r, err := s.Scan(true)
	return *r.Machine, err
}

// ReadJob reads one job by its name or, if the argument contains a slash, by the path of its
// region. If a job exists but could not be read, ReadJob returns it together with the error, which
// Job.Err returns too.
func ReadJob(nameOrPath string) (Job, error) {
	found, err := job.Find(nameOrPath)
	if err != nil {
		return Job{}, err
	}
	j, err := readRegion(found.Path, budgetForAll())
	j.setName(found.Name)
	return j, err
}

func readRegion(path string, p safepath.Budget) (Job, error) {
	dir, err := safepath.OpenFolder(filepath.Dir(path))
	if err != nil {
		return unreadable(path, fmt.Errorf("opening region %s: %w", path, err))
	}
	defer unix.Close(dir)
	return readRegionAt(dir, filepath.Base(path), path, p, true)
}

// emptyJob returns a job with nothing but the path of its region.
func emptyJob(path string) Job {
	return Job{Path: path, UID: -1, Command: []string{}, ReadOnly: true, Devices: []Device{}, Processes: []Process{}, Reaped: []Process{},
		Refusals: []Refusal{}, Deaths: []Death{}}
}

func unreadable(path string, err error) (Job, error) {
	j := emptyJob(path)
	j.Error, j.err = err.Error(), err
	return j, err
}

// errUnready is returned for a job of a policy that no process can join.
var errUnready = fmt.Errorf("%w: it is being made or removed", fs.ErrNotExist)

// readRegionAt reads the region called name in the folder with descriptor dir. keepers says whether
// to find the processes that keep the files of ending processes open.
func readRegionAt(dir int, name, path string, p safepath.Budget, keepers bool) (Job, error) {
	j := emptyJob(path)
	launch := job.ReadLaunch(dir)
	if job.IsRun(path) && !launch.Standing {
		return j, errUnready // the run may yet be refused
	}
	launch.Standing = launch.Standing && !job.PolicyEnded(path)
	if path == filepath.Join(job.WellKnown, job.RegionName) {
		launch.Running = true // this process is in the job, so the job is running
	}
	j.setOwner(dir, name) // the file may be removed while it is read
	err := j.read(dir, name, p.Part(jobBudget), keepers)
	// The service of a policy mounts the region of a user before its job stands, and unmounts it afterwards. What is
	// below that is root's.
	if _, is := job.PolicyUser(path); is && errors.Is(err, fs.ErrPermission) && !job.ReadLaunch(dir).Standing {
		err = errUnready
	}
	if err != nil {
		j, _ = unreadable(path, err)
		j.addHolders(dir, name)
		j.addOperatorLimits(dir, name)
	}
	j.addLaunch(launch, dir, name)
	return j, err
}

func (j *Job) read(dir int, name string, p safepath.Budget, keepers bool) error {
	r, err := region.OpenReadOnlyAt(dir, name, j.Path)
	if err != nil {
		return err
	}
	defer r.Close()
	r.SetBudget(p.Left)
	if err := j.readUsage(r, p); err != nil {
		return err
	}
	if err := j.readHistory(r); err != nil {
		return err
	}
	if keepers {
		j.addKeepers(r, forIdentities(p))
	}
	// A lock counts even if the region shows no process for it: a job must not be able to hide
	// itself.
	if r.Locked() || slices.ContainsFunc(j.Processes, func(p Process) bool { return p.State != Dead }) {
		j.State = Running
	} else { // the processes that slept have ended
		j.Sleep, j.SleepSince, j.RationLent = "", time.Time{}, false
	}
	j.ReadOnly = slices.ContainsFunc(j.Processes, func(p Process) bool { return p.State == Dead })
	return nil
}

// dropUnknown drops device numbers without a device. A default limit is set for every possible
// number; once the size of one device is known, numbers without a size have no device.
func (j *Job) dropUnknown() {
	if slices.ContainsFunc(j.Devices, func(d Device) bool { return d.Total > 0 }) {
		j.Devices = slices.DeleteFunc(j.Devices, func(d Device) bool { return d.Total == 0 && d.Used == 0 && d.Peak == 0 })
	}
}

// readHistory reads the refusals and the counters.
func (j *Job) readHistory(r *region.Region) error {
	refusals, err := r.Refusals()
	if err != nil {
		return err
	}
	for _, f := range refusals {
		top := []Holder{}
		for _, h := range f.Top {
			top = append(top, Holder(h))
		}
		j.Refusals = append(j.Refusals, Refusal{timeOf(f.Time), f.Device, f.Slot, f.PID, f.Asked, f.Held, f.Limit, f.Own, top, min(f.Waited.Nanoseconds(), int64(24*time.Hour)), f.Waited.Mutual()})
	}
	if j.Deaths, err = readDeaths(r); err != nil {
		return err
	}
	known, died := r.Recorded()
	j.unwritten = known - len(j.Refusals) + died - len(j.Deaths)
	c, err := r.Counters()
	j.Died, j.Damaged = c.Reaped, c.Damaged
	j.Reads = Reads{}.and(Reads{Reads: c.Reads, Retries: c.Retries, BestEffort: c.BestEffort})
	j.own.Reads, j.own.Retries, j.own.BestEffort = r.OwnReads()
	j.Created, j.Claims = timeOf(r.Created()), c.Claims
	if err != nil {
		return err
	}
	if j.Priority, err = priorityOf(r); err != nil {
		return err
	}
	if err := j.readPriority(r); err != nil {
		return err
	}
	word, err := r.Sleep()
	if err != nil {
		return err
	}
	slept, err := r.SleepTime()
	if err != nil {
		return err
	}
	j.Sleep, j.Sleeps, j.SleepSince = sleepText(word), word.Count(), timeOf(slept)
	j.RationLent = j.isLent()
	if j.WaitAlloc, err = r.WaitAlloc(); err != nil {
		return err
	}
	return j.readWaiters(r)
}

// readWaiters adds what the processes' requests wait for.
func (j *Job) readWaiters(r *region.Region) error {
	waiters, err := r.Waiters()
	for _, w := range waiters {
		i := slices.IndexFunc(j.Processes, func(p Process) bool { return p.Slot == w.Slot })
		if i >= 0 {
			j.Processes[i].Waits = append(j.Processes[i].Waits, Wait{w.Device, w.Bytes, w.Since})
		}
	}
	return err
}

// isLent reports whether the policy has lent the ration of a job that sleeps: then all its limits of memory are 0. The
// same limits have a job whose user gave the whole ration to runs.
func (j *Job) isLent() bool {
	uid, is := job.PolicyUser(j.Path)
	limited := slices.ContainsFunc(j.Devices, func(d Device) bool { return d.Limited })
	return is && j.Sleep == Asleep && limited && j.Path == job.OfUserPath(uid) &&
		!slices.ContainsFunc(j.Devices, func(d Device) bool { return d.Limited && d.Limit > 0 }) && len(job.RunsOf(uid)) == 0
}

// sleepText returns whether a job sleeps, for people; empty if it is awake.
func sleepText(word abi.Sleep) string {
	switch word.State() {
	case abi.Awake:
		return ""
	case abi.Falling:
		return FallingAsleep
	case abi.Waking, abi.Restoring:
		return Waking
	}
	return Asleep
}

// owner is the identity of a process, as the kernel reports it.
type owner struct {
	uid, pid         int // pid is in its own namespace; 0 if unknown
	name             string
	group, container string
	stopped          bool
	started          uint64 // as proc.Stat.Start; 0 if unknown
	err              error
}

// owners caches the identities of processes, because one process may have many slots.
type owners map[int]owner // by PID as seen from here

// ask asks the kernel for the identity of a process and stores it, unless it is already stored.
func (all owners) ask(pid int) {
	if _, known := all[pid]; known {
		return
	}
	var o owner
	o.uid, o.name, o.pid, o.err = proc.Owner(pid)
	o.group, o.container = proc.Cgroup(pid)
	if stat, err := proc.ReadStat(pid); err == nil {
		o.stopped, o.started = stat.Stopped(), stat.Start
	}
	all[pid] = o
}

// claimed returns the identity that a process claims. It does not look up the name of a claimed
// user, because a job could claim any number of users.
func claimed(p region.Process) Process {
	out := Process{
		Slot: p.Slot, PID: p.PID, HostPID: p.HostPID, UID: p.UID, User: strconv.Itoa(p.UID), Name: p.Name,
		State: Live, CannotSleep: region.CannotText(p.Cannot), Lent: p.Lent, Joined: timeOf(p.Joined), Holdings: []Holding{}, mps: p.Cannot&abi.CannotMPS != 0,
	}
	if p.UID < 0 {
		out.User = "?" // the claimed number is not a user
	}
	switch {
	case p.Dead:
		out.State = Dead
	case p.Ending:
		out.State = Ending
	}
	switch { // the kernel's answer comes before the job's claim, even if it may be outdated
	case p.Named == 0:
	case region.OnHost():
		out.HostPID = p.Named
	default:
		out.PID = p.Named
	}
	return out
}

// identify replaces a claimed identity by the kernel's, if this process can see the process that
// holds the lock. The caller has filled all before; identify then checks that the same process
// still holds the lock.
func (p *Process) identify(r *region.Region, slot region.Process, all owners) {
	o, asked := all[slot.Seen]
	if !asked { // this process cannot see it, or the time was used up
		return
	}
	if o.stopped && !slot.Dead { // if Seen is 0, its lock shows that it is alive, and no more is visible from here
		p.State = Stopped
	}
	// It may have ended, and another process may have its PID now.
	if o.err != nil || r.LockedBy(slot.Slot) != slot.Seen {
		return
	}
	p.Verified, p.UID, p.User = true, o.uid, proc.UserName(o.uid)
	p.Local = ProcessID{slot.Seen, o.started}
	p.Cgroup, p.Container = o.group, o.container
	// Use the PID that the kernel reports or, if it reports none, the PID as seen from here. The
	// PID in the region is only a claim.
	p.PID = cmp.Or(o.pid, slot.Seen)
	// A program that reads its own job may have chosen another name there.
	if slot.Seen != os.Getpid() && !proc.CalledBy(slot.Seen, slot.Name, o.name) {
		p.Name = termtext.Printable(o.name)
	}
}

// reap calls its argument to return the memory of dead processes to the job, and reads the job
// again, if no other user can write the job's region. A nil function changes nothing. reap also
// helps processes of other PID namespaces: it records the host PIDs that this process sees, by
// which they find themselves in the driver's list.
func (j *Job) reap(reap func(path string) (int, error)) {
	var st unix.Stat_t
	if reap == nil || j.Err() != nil || unix.Lstat(j.Path, &st) != nil || st.Uid != uint32(unix.Geteuid()) || st.Mode&0o022 != 0 {
		return
	}
	dead := slices.DeleteFunc(slices.Clone(j.Processes), func(p Process) bool { return p.State != Dead })
	foreign := slices.ContainsFunc(j.Processes, func(p Process) bool { return p.HostPID != p.PID })
	if len(dead) == 0 && !foreign {
		return
	}
	n, err := reap(j.Path)
	if err != nil || n == 0 {
		return // dead processes stay in the list
	}
	after, err := readRegion(j.Path, budgetForAll())
	if after.Name = j.Name; err == nil {
		after.Reaped = dead
	}
	*j = after
}

// priorityOf returns a job's priority for people; empty for normal.
func priorityOf(r *region.Region) (string, error) {
	p, err := r.Priority()
	switch p {
	case abi.PriorityHigh:
		return "high", err
	case abi.PriorityLow:
		return "low", err
	}
	return "", err
}
