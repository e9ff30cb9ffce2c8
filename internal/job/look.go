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

// Look reads a job's region. Where it may write, it first gives back what dead
// processes hold, unless it is only to look.
func Look(j Job, only bool) Status {
	s := Status{Job: j.Name, Path: j.Path, Devices: []Device{}, Processes: []Process{}, Reaped: []Process{}, Refusals: []Refusal{}}
	if s.err = s.look(only); s.err != nil {
		s.Error = s.err.Error()
	}
	return s
}

func (s *Status) look(only bool) error {
	r, err := s.open(only)
	if err != nil {
		return err
	}
	defer r.Close()
	if s.Processes, err = processes(r); err != nil {
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
	// A limit for all devices there might be is set for all of them: once some are
	// known, those count.
	if slices.ContainsFunc(s.Devices, func(d Device) bool { return d.Total > 0 }) {
		s.Devices = slices.DeleteFunc(s.Devices, func(d Device) bool { return d.Total == 0 && d.Used == 0 && d.Peak == 0 })
	}
	return s.history(r)
}

func (s *Status) open(only bool) (*region.Region, error) {
	if !only {
		r, err := region.Open(s.Path, region.Options{NoCreate: true, AnyOwner: true})
		if !errors.Is(err, fs.ErrPermission) && !errors.Is(err, unix.EROFS) {
			return r, err
		}
	}
	s.ReadOnly = true
	return region.OpenReadOnly(s.Path)
}

// reap gives back what the dead hold, and keeps who they were.
func (s *Status) reap(r *region.Region) error {
	n, err := r.Reap()
	if err != nil || n == 0 {
		return err
	}
	before := s.Processes
	if s.Processes, err = processes(r); err != nil {
		return err
	}
	for _, p := range before {
		if p.State == Dead {
			s.Reaped = append(s.Reaped, p)
		}
	}
	return nil
}

// history reads what is kept of the past.
func (s *Status) history(r *region.Region) error {
	refusals, err := r.Refusals()
	if err != nil {
		return err
	}
	for _, f := range refusals {
		out := Refusal{f.Time, f.Device, f.Slot, f.PID, f.Asked, f.Held, f.Limit, f.Own, []Holder{}}
		for _, h := range f.Top {
			out.Top = append(out.Top, Holder(h))
		}
		s.Refusals = append(s.Refusals, out)
	}
	c, err := r.Counters()
	s.Reads, s.Created, s.Claims = Reads{c.Reads, c.Retries, c.BestEffort}, r.Created(), c.Claims
	return err
}

func processes(r *region.Region) ([]Process, error) {
	all, err := r.Processes()
	if err != nil {
		return nil, err
	}
	out, at := make([]Process, len(all)), map[int]int{}
	for i, p := range all {
		out[i] = Process{p.Slot, p.PID, p.HostPID, p.UID, userName(p.UID), p.Name, stateOf(p), p.Joined, []Holding{}}
		at[p.Slot] = i
	}
	var buf []region.Holding
	for d := range abi.Devices {
		if buf, err = r.Holdings(d, buf[:0]); err != nil {
			return nil, err
		}
		for _, h := range buf {
			i, there := at[h.Slot]
			if !there || h.Total == 0 && h.Peak == 0 {
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
		return Live // by its lock; more cannot be seen from here
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Seen))
	if at := bytes.LastIndexByte(stat, ')'); err == nil && at >= 0 && len(stat) > at+2 {
		if c := stat[at+2]; c == 'T' || c == 't' {
			return Stopped
		}
	}
	return Live
}

// userName looks a user up once: whoever looks every second should not ask a
// directory service as often.
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

var userNames sync.Map // of names, by int
