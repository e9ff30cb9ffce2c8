package job

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"ration/internal/abi"
	"ration/internal/region"
)

// ReadOptions say how to read a job.
type ReadOptions struct {
	// ReadOnly leaves the region as it is. Otherwise, where this process may write
	// the region, what dead processes hold is first returned to the job.
	ReadOnly bool
}

// Read reads a job's region. A region that cannot be read is reported in the Status.
func Read(j Job, opts ReadOptions) Status {
	s := Status{Job: j.Name, Path: j.Path, Devices: []Device{}, Processes: []Process{}, Reaped: []Process{}, Refusals: []Refusal{}}
	if s.err = s.read(opts); s.err != nil {
		s.Error = s.err.Error()
	}
	return s
}

// ReadAll reads every job that List returns, except for named jobs that ended in
// the meantime or have not begun. The error is List's.
func ReadAll(opts ReadOptions) ([]Status, error) {
	jobs, err := List()
	if err != nil {
		return nil, err
	}
	all := []Status{}
	for _, j := range jobs {
		if s := Read(j, opts); j.Name == "" || !s.noRegion() {
			all = append(all, s)
		}
	}
	return all, nil
}

// noRegion reports whether the region is gone, or not initialised yet.
func (s *Status) noRegion() bool {
	return errors.Is(s.err, fs.ErrNotExist) || errors.Is(s.err, region.ErrInit)
}

func (s *Status) read(opts ReadOptions) error {
	r, err := s.open(opts)
	if err != nil {
		return err
	}
	defer r.Close()
	if s.Processes, err = readProcesses(r); err != nil {
		return err
	}
	if !s.ReadOnly {
		if err := s.reap(r); err != nil {
			return err
		}
	}
	for d := range abi.Devices {
		limit, err := r.Limit(d)
		if err != nil {
			return err
		}
		total, err := r.Total(d)
		if err != nil {
			return err
		}
		used, peak, err := r.Usage(d)
		if err != nil {
			return err
		}
		dev := Device{d, limit.Limited(), limit.Bytes(), limit.Tolerance(), used, peak, total, r.Refused(d)}
		if limit.IsSet() || dev.Used > 0 || dev.Peak > 0 {
			s.Devices = append(s.Devices, dev)
		}
	}
	// A default limit is set for every device number there is room for. Once the size
	// of one device is known, the numbers without a size are of no device.
	if slices.ContainsFunc(s.Devices, func(d Device) bool { return d.Total > 0 }) {
		s.Devices = slices.DeleteFunc(s.Devices, func(d Device) bool { return d.Total == 0 && d.Used == 0 && d.Peak == 0 })
	}
	return s.readHistory(r)
}

func (s *Status) open(opts ReadOptions) (*region.Region, error) {
	if !opts.ReadOnly {
		r, err := region.Open(s.Path, region.Options{NoCreate: true, AnyOwner: true})
		if !errors.Is(err, fs.ErrPermission) && !errors.Is(err, unix.EROFS) {
			return r, err
		}
	}
	s.ReadOnly = true
	return region.OpenReadOnly(s.Path)
}

// reap returns what dead processes hold to the job, and lists them in s.Reaped.
func (s *Status) reap(r *region.Region) error {
	n, err := r.Reap()
	if err != nil || n == 0 {
		return err
	}
	before := s.Processes
	if s.Processes, err = readProcesses(r); err != nil {
		return err
	}
	for _, p := range before {
		if p.State == Dead {
			s.Reaped = append(s.Reaped, p)
		}
	}
	return nil
}

// readHistory reads the refusals and the counters.
func (s *Status) readHistory(r *region.Region) error {
	refusals, err := r.Refusals()
	if err != nil {
		return err
	}
	for _, f := range refusals {
		if f.Top == nil {
			f.Top = []Holder{} // an empty list in JSON
		}
		s.Refusals = append(s.Refusals, Refusal(f))
	}
	c, err := r.Counters()
	s.Reads, s.Created, s.Claims = Reads{c.Reads, c.Retries, c.BestEffort}, r.Created(), c.Claims
	return err
}

func readProcesses(r *region.Region) ([]Process, error) {
	all, err := r.Processes()
	if err != nil {
		return nil, err
	}
	out, index := make([]Process, len(all)), map[int]int{} // index in out, by slot
	for i, p := range all {
		out[i] = Process{p.Slot, p.PID, p.HostPID, p.UID, userName(p.UID), p.Name, stateOf(p), p.Joined, []Holding{}}
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
	if p.Dead {
		return Dead
	}
	if p.Seen == 0 {
		return Live // by its lock; this process cannot see more of it
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Seen))
	if at := bytes.LastIndexByte(stat, ')'); err == nil && at >= 0 && len(stat) > at+2 {
		if c := stat[at+2]; c == 'T' || c == 't' {
			return Stopped
		}
	}
	return Live
}

// userName returns a user's name, or the UID where it has none. It asks once for
// each user: a program that reads every second must not query a directory service
// as often.
func userName(uid int) string {
	if name, known := userNames.Load(uid); known {
		return name.(string)
	}
	name := strconv.Itoa(uid)
	if u, err := user.LookupId(name); err == nil {
		name = u.Username
	}
	userNames.Store(uid, name)
	return name
}

var userNames sync.Map // UID (int) to name (string)
