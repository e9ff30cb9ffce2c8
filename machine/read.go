package machine

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"ration/internal/budget"
	"ration/internal/gpu"
	"ration/internal/job"
	"ration/internal/proc"
	"ration/internal/region"
	"ration/internal/safepath"
	"ration/internal/scan"
	"ration/internal/termtext"
)

// Read reads the devices, this user's jobs, and the region that CUDA_DEVICE_MEMORY_SHARED_CACHE names if
// it exists. As root it reads the jobs of all users, unless RATION_DIR names one folder: the Findings name
// a user whose folder does not answer within two seconds, and one whose jobs are not all shown (Omitted). A
// region that cannot be read is a Job with an Error. Jobs that ended meanwhile, or have not begun, are left
// out. The error says why the jobs could not be listed.
//
// To start NVML takes some 50 ms. A program that reads again and again uses [Watch].
func Read() (Machine, error) {
	var session gpu.Session
	defer session.Close()
	s := newScanner(scan.Options{Once: true, Driver: &session})
	defer s.Close()
	r, err := s.Scan(true)
	return *r.Machine, err
}

// ReadJob reads one job, by its name or, where the argument has a slash in it, by the path of its region. A
// job that was found and could not be read is returned with the error, which Job.Err returns too.
func ReadJob(nameOrPath string) (Job, error) {
	found, err := job.Find(nameOrPath)
	if err != nil {
		return Job{}, err
	}
	j, err := readRegion(found.Path, patienceForAll())
	j.Name = found.Name
	return j, err
}

func readRegion(path string, p budget.Budget) (Job, error) {
	dir, err := safepath.OpenFolder(filepath.Dir(path))
	if err != nil {
		return unreadable(path, fmt.Errorf("opening region %s: %w", path, err))
	}
	defer unix.Close(dir)
	return readRegionAt(dir, filepath.Base(path), path, p, true)
}

// emptyJob returns a job of which only the path of its region is known.
func emptyJob(path string) Job {
	return Job{Path: path, UID: -1, Command: []string{}, ReadOnly: true, Devices: []Device{}, Processes: []Process{}, Reaped: []Process{},
		Refusals: []Refusal{}, Deaths: []Death{}}
}

func unreadable(path string, err error) (Job, error) {
	j := emptyJob(path)
	j.Error, j.err = err.Error(), err
	return j, err
}

// readRegionAt reads a region by its name in the folder with a descriptor. keepers says whether to ask
// which processes keep the files of those that are ending.
func readRegionAt(dir int, name, path string, p budget.Budget, keepers bool) (Job, error) {
	j := emptyJob(path)
	launch := job.ReadLaunch(dir)
	if path == filepath.Join(job.WellKnown, job.RegionName) {
		launch.Running = true // this process is in it: no other one finds a job there
	}
	err := j.read(dir, name, p.Part(jobPatience), keepers)
	if err != nil {
		j, _ = unreadable(path, err)
		j.addHolders(dir, name)
	}
	j.addLaunch(launch, dir, name)
	return j, err
}

func (j *Job) read(dir int, name string, p budget.Budget, keepers bool) error {
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
	// A lock counts also if the region does not show its process: a job must not hide itself.
	if r.Locked() || slices.ContainsFunc(j.Processes, func(p Process) bool { return p.State != Dead }) {
		j.State = Running
	}
	return nil
}

// dropUnknown drops the numbers that have no device: a default limit is set for every possible number, and
// once the size of one device is known, those without a size do not exist.
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
		j.Refusals = append(j.Refusals, Refusal{timeOf(f.Time), f.Device, f.Slot, f.PID, f.Asked, f.Held, f.Limit, f.Own, top})
	}
	if j.Deaths, err = readDeaths(r); err != nil {
		return err
	}
	known, died := r.Recorded()
	j.unwritten = known - len(j.Refusals) + died - len(j.Deaths)
	c, err := r.Counters()
	j.Died, j.Damaged = c.Reaped, c.Damaged
	j.Reads, j.Created, j.Claims = Reads{c.Reads, c.Retries, c.BestEffort}, timeOf(r.Created()), c.Claims
	return err
}

// owner is the identity of a process by the kernel's word.
type owner struct {
	uid, pid         int // pid is its own, or 0 where that is not known
	name             string
	group, container string
	stopped          bool
	err              error
}

// owners has the identities of processes. One process may have many slots, and is asked for once.
type owners map[int]owner // by PID as seen from here

// ask asks the kernel for the identity of a process, unless it is known.
func (all owners) ask(pid int) {
	if _, known := all[pid]; known {
		return
	}
	var o owner
	o.uid, o.name, o.pid, o.err = proc.Owner(pid)
	o.group, o.container = proc.Cgroup(pid)
	o.stopped = proc.Stopped(pid)
	all[pid] = o
}

// claimed returns the identity that a process claims. A claimed user's name is not looked up: a job could
// claim any number of users.
func claimed(p region.Process) Process {
	out := Process{
		Slot: p.Slot, PID: p.PID, HostPID: p.HostPID, UID: p.UID, User: strconv.Itoa(p.UID), Name: p.Name,
		State: Live, Joined: timeOf(p.Joined), Holdings: []Holding{},
	}
	if p.UID < 0 {
		out.User = "?" // what it says is no user
	}
	switch {
	case p.Dead:
		out.State = Dead
	case p.Ending:
		out.State = Ending
	}
	switch { // the kernel's word counts before the job's, though this one may be of the past
	case p.Named == 0:
	case region.OnHost():
		out.HostPID = p.Named
	default:
		out.PID = p.Named
	}
	return out
}

// identify replaces a claimed identity by the kernel's, if the lock names a process that can be seen from
// here. all was asked before this asks for the lock again.
func (p *Process) identify(r *region.Region, slot region.Process, all owners) {
	o, asked := all[slot.Seen]
	if !asked { // it cannot be seen from here, or the time was over
		return
	}
	if o.stopped && !slot.Dead { // where Seen is 0 it is alive by its lock, and more cannot be seen from here
		p.State = Stopped
	}
	// It may have ended, and its PID been given to another process.
	if o.err != nil || r.LockedBy(slot.Slot) != slot.Seen {
		return
	}
	p.Verified, p.UID, p.User = true, o.uid, proc.UserName(o.uid)
	p.Cgroup, p.Container = o.group, o.container
	// The kernel's word for its own PID or, if there is none, for the one seen from here. The region's is only a
	// claim.
	p.PID = cmp.Or(o.pid, slot.Seen)
	// A program that reads its own job may have given itself another name there.
	if slot.Seen != os.Getpid() && !proc.CalledBy(slot.Seen, slot.Name, o.name) {
		p.Name = termtext.Printable(o.name)
	}
}

// reap has what dead processes hold returned to the job, and reads the job again, if no other user can
// write its region. A nil function changes nothing. It is also called for processes of other PID namespaces:
// it writes down the host PIDs that this process sees, which they need to find themselves in the driver's
// list.
func (j *Job) reap(reap func(path string) (int, error)) {
	var st unix.Stat_t
	if reap == nil || j.Err() != nil || unix.Lstat(j.Path, &st) != nil || st.Uid != uint32(unix.Geteuid()) || st.Mode&0o022 != 0 {
		return
	}
	dead := slices.DeleteFunc(slices.Clone(j.Processes), func(p Process) bool { return p.State != Dead })
	foreign := slices.ContainsFunc(j.Processes, func(p Process) bool { return p.HostPID != p.PID })
	if j.ReadOnly = false; len(dead) == 0 && !foreign {
		return
	}
	n, err := reap(j.Path)
	if err != nil {
		j.ReadOnly = true // the dead are shown as they are
	}
	if err != nil || n == 0 {
		return
	}
	after, err := readRegion(j.Path, patienceForAll())
	if after.Name, after.ReadOnly = j.Name, false; err == nil {
		after.Reaped = dead
	}
	*j = after
}
