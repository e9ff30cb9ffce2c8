package machine

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"ration/internal/job"
	"ration/internal/patience"
	"ration/internal/proc"
	"ration/internal/region"
	"ration/internal/safepath"
	"ration/internal/termtext"
)

// Read reads this user's jobs, and the region that CUDA_DEVICE_MEMORY_SHARED_CACHE
// names if it exists. As root it reads the jobs of all users, unless RATION_DIR names one
// folder: a user whose folder does not answer within two seconds is one of the Findings, and so is one
// of whose jobs some is left out (Omitted). A region that cannot be read is a Job with an Error. Jobs that
// ended in the meantime, or that have not begun, are left out. The error says why
// the jobs could not be listed.
func Read() (Machine, error) {
	m := Machine{Folder: job.Folder(), Devices: []GPU{}, Jobs: []Job{}, Outside: []Outside{}, Findings: []Finding{}}
	jobs, err := job.List()
	if err != nil {
		return m, err
	}
	p := patienceForAll()
	for _, j := range jobs {
		out, err := readRegion(j.Path, p)
		if out.Name = j.Name; j.Name != "" && job.EndedOrNotBegun(err) && !region.Locked(j.Path) {
			continue
		}
		m.Jobs = append(m.Jobs, out)
	}
	if job.AllUsers() {
		m.addUsers(job.AllPlaces, userPatience)
		m.addFloods()
	}
	return m, nil
}

// ReadJob reads one job, by its name or, where the argument has a slash in it, by
// the path of its region.
func ReadJob(nameOrPath string) (Job, error) {
	j, err := job.Find(nameOrPath)
	if err != nil {
		return Job{}, err
	}
	out, err := ReadRegion(j.Path)
	out.Name = j.Name
	return out, err
}

// ReadRegion reads the region at path. Its job's name stays empty. The error is also
// in the Job.
func ReadRegion(path string) (Job, error) {
	return readRegion(path, patienceForAll())
}

func readRegion(path string, p patience.Patience) (Job, error) {
	dir, err := safepath.OpenFolder(filepath.Dir(path))
	if err != nil {
		return unreadable(path, fmt.Errorf("opening region %s: %w", path, err))
	}
	defer unix.Close(dir)
	return readRegionAt(dir, filepath.Base(path), path, p, true)
}

// emptyJob is a job of which nothing but the path of its region is known.
func emptyJob(path string) Job {
	return Job{Path: path, UID: -1, Command: []string{}, ReadOnly: true, Devices: []Device{}, Processes: []Process{}, Reaped: []Process{},
		Refusals: []Refusal{}, Deaths: []Death{}}
}

func unreadable(path string, err error) (Job, error) {
	j := emptyJob(path)
	j.Error, j.err = err.Error(), err
	return j, err
}

// readRegionAt reads the region of a name in a job's folder, by the folder's descriptor. keepers says
// whether to ask who has the files of processes that are ending.
func readRegionAt(dir int, name, path string, p patience.Patience, keepers bool) (Job, error) {
	j := emptyJob(path)
	launch := job.ReadLaunch(dir)
	if path == filepath.Join(job.WellKnown, job.RegionName) {
		launch.Running = true // as this process is in it: no other finds a job there
	}
	err := j.read(dir, name, p.Part(jobPatience), keepers)
	if err != nil {
		j, _ = unreadable(path, err)
		j.addHolders(dir, name)
	}
	j.addLaunch(launch, dir, name)
	return j, err
}

func (j *Job) read(dir int, name string, p patience.Patience, keepers bool) error {
	r, err := region.OpenReadOnlyAt(dir, name, j.Path)
	if err != nil {
		return err
	}
	defer r.Close()
	r.SetPatience(p.Left)
	if err := j.readUsage(r, p); err != nil {
		return err
	}
	if err := j.readHistory(r); err != nil {
		return err
	}
	if keepers {
		j.addKeepers(r, forIdentities(p))
	}
	// Also by a process that the region does not show: a job must not hide by what it writes.
	if r.Locked() || slices.ContainsFunc(j.Processes, func(p Process) bool { return p.State != Dead }) {
		j.State = Running
	}
	return nil
}

// dropUnknown drops the numbers that are of no device.
func (j *Job) dropUnknown() {
	// A default limit is set for every device number there is room for. Once the size
	// of one device is known, the numbers without a size are of no device.
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
		j.Refusals = append(j.Refusals, Refusal{f.Time, timeOf(f.Time), f.Device, f.Slot, f.PID, f.Asked, f.Held, f.Limit, f.Own, top})
	}
	if j.Deaths, err = readDeaths(r); err != nil {
		return err
	}
	known, died := r.Recorded()
	j.unwritten = known - len(j.Refusals) + died - len(j.Deaths)
	c, err := r.Counters()
	j.Died, j.Damaged = c.Reaped, c.Damaged
	j.Reads, j.Created, j.Claims = Reads{c.Reads, c.Retries, c.BestEffort}, r.Created(), c.Claims
	j.CreatedAt = timeOf(j.Created)
	return err
}

// owner is who a process is, by the kernel's word.
type owner struct {
	uid, pid         int // pid is its own, or 0 where that is not known
	name             string
	group, container string
	stopped          bool
	err              error
}

// owners finds out who processes are, each once: one may have many slots.
type owners map[int]owner // by PID as seen from here

// ask finds out who a process is, unless that is known.
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

// claimed returns who a process is by its own word. What it only says of itself costs no
// look-up of a user's name: a job could claim any number of them.
func claimed(p region.Process) Process {
	out := Process{
		Slot: p.Slot, PID: p.PID, HostPID: p.HostPID, UID: p.UID, User: strconv.Itoa(p.UID), Name: p.Name,
		State: Live, Joined: p.Joined, JoinedAt: timeOf(p.Joined), Holdings: []Holding{},
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

// identify replaces that by the kernel's word, where the process's lock names one that can be
// seen from here. all was asked before the lock is asked for once more.
func (p *Process) identify(r *region.Region, slot region.Process, all owners) {
	o, asked := all[slot.Seen]
	if !asked { // it cannot be seen from here, or not in time
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
	// Its own where the kernel says that; otherwise the one that it has from here. What the region
	// says is only a claim.
	p.PID = cmp.Or(o.pid, slot.Seen)
	// A program that reads its own job may have given itself another name there.
	if slot.Seen != os.Getpid() && !proc.CalledBy(slot.Seen, slot.Name, o.name) {
		p.Name = termtext.Printable(o.name)
	}
}
