package machine

import (
	"cmp"
	"slices"

	"ration/internal/abi"
	"ration/internal/job"
	"ration/internal/proc"
	"ration/internal/region"
)

// Read reads this user's jobs, and the region that CUDA_DEVICE_MEMORY_SHARED_CACHE
// names if it exists. A region that cannot be read is a Job with an Error. Jobs that
// ended in the meantime, or that have not begun, are left out. The error says why
// the jobs could not be listed.
func Read() (Machine, error) {
	m := Machine{Folder: job.Folder(), Jobs: []Job{}}
	jobs, err := job.List()
	if err != nil {
		return m, err
	}
	for _, j := range jobs {
		out, err := ReadRegion(j.Path)
		if out.Name = j.Name; j.Name != "" && job.EndedOrNotBegun(err) {
			continue
		}
		m.Jobs = append(m.Jobs, out)
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
	empty := Job{Path: path, ReadOnly: true, Devices: []Device{}, Processes: []Process{}, Reaped: []Process{}, Refusals: []Refusal{}}
	j := empty
	if err := j.read(); err != nil {
		empty.Error, empty.err = err.Error(), err
		return empty, err
	}
	return j, nil
}

func (j *Job) read() error {
	r, err := region.OpenReadOnly(j.Path)
	if err != nil {
		return err
	}
	defer r.Close()
	if j.Processes, err = readProcesses(r); err != nil {
		return err
	}
	if err := j.readDevices(r); err != nil {
		return err
	}
	return j.readHistory(r)
}

func (j *Job) readDevices(r *region.Region) error {
	for d := range abi.Devices {
		limit, errLimit := r.Limit(d)
		total, errTotal := r.Total(d)
		used, peak, errUsage := r.Usage(d)
		if err := cmp.Or(errLimit, errTotal, errUsage); err != nil {
			return err
		}
		dev := Device{d, limit.Limited(), limit.Bytes(), limit.Tolerance(), used, peak, total, r.Refused(d)}
		if limit.IsSet() || dev.Used > 0 || dev.Peak > 0 {
			j.Devices = append(j.Devices, dev)
		}
	}
	// A default limit is set for every device number there is room for. Once the size
	// of one device is known, the numbers without a size are of no device.
	if slices.ContainsFunc(j.Devices, func(d Device) bool { return d.Total > 0 }) {
		j.Devices = slices.DeleteFunc(j.Devices, func(d Device) bool { return d.Total == 0 && d.Used == 0 && d.Peak == 0 })
	}
	return nil
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
		j.Refusals = append(j.Refusals, Refusal{f.Time, f.Device, f.Slot, f.PID, f.Asked, f.Held, f.Limit, f.Own, top})
	}
	c, err := r.Counters()
	j.Reads, j.Created, j.Claims = Reads{c.Reads, c.Retries, c.BestEffort}, r.Created(), c.Claims
	return err
}

func readProcesses(r *region.Region) ([]Process, error) {
	all, err := r.Processes()
	if err != nil {
		return nil, err
	}
	out, index := make([]Process, len(all)), map[int]int{} // index in out, by slot
	for i, p := range all {
		out[i] = Process{p.Slot, p.PID, p.HostPID, p.UID, proc.UserName(p.UID), p.Name, stateOf(p), p.Joined, []Holding{}}
		index[p.Slot] = i
	}
	var buf []region.Holding
	for d := range abi.Devices {
		if buf, err = r.Holdings(d, buf[:0]); err != nil {
			return nil, err
		}
		for _, h := range buf {
			i, found := index[h.Slot]
			if !found || h.Total == 0 && h.Peak == 0 {
				continue
			}
			driver, err := r.Driver(d, h.Slot)
			if err != nil {
				return nil, err
			}
			out[i].Holdings = append(out[i].Holdings, Holding{d, h.Total, h.Kind[abi.Context], h.Kind[abi.Module], h.Kind[abi.Data],
				h.Kind[abi.Overhead], h.Peak, driver, h.BestEffort})
		}
	}
	return out, nil
}

func stateOf(p region.Process) string {
	switch {
	case p.Dead:
		return Dead
	case p.Seen != 0 && proc.Stopped(p.Seen): // 0: alive by its lock, and more cannot be seen from here
		return Stopped
	}
	return Live
}
