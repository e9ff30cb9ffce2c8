package agent

import (
	"sync"
	"time"

	"ration/internal/node"
	"ration/machine"
)

// The history covers 15 minutes in steps of five seconds, for at most maxHistory pairs of a job and
// a device. Each has 180 values of four kinds; all together they need at most 3 MiB.
const (
	historyInterval = 5 * time.Second
	historyLength   = 180
	maxHistory      = 512
)

type historyKey struct {
	job    machine.JobID
	device int
}

// jobSeries holds the values of a job on one device.
type jobSeries struct {
	of      node.JobHistory // all but the values
	account int             // account that this series counts for
	first   int             // index of the first value, counted from the agent's start
	values  [][4]uint64     // used, refused, died, compute
}

type deviceValue struct {
	used, rations uint64
	busy          *float64
}

type deviceSeries struct {
	first  int
	values []deviceValue
}

// history keeps the values of the last minutes. Values are numbered from the agent's start.
type history struct {
	mu      sync.Mutex
	last    time.Time
	times   []time.Time
	first   int // number of times[0]
	jobs    map[historyKey]*jobSeries
	devices map[int]*deviceSeries
}

func newHistory() *history {
	return &history{jobs: map[historyKey]*jobSeries{}, devices: map[int]*deviceSeries{}}
}

// add adds the current values if historyInterval has passed since the last time.
func (h *history) add(m *machine.Machine, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now.Sub(h.last) < historyInterval {
		return
	}
	h.last = now
	h.times = append(h.times, now.UTC())
	number := h.first + len(h.times) - 1
	if len(h.times) > historyLength {
		h.times = append([]time.Time(nil), h.times[len(h.times)-historyLength:]...)
		h.first = number + 1 - historyLength
	}
	h.forget()
	for i := range m.Devices {
		g := &m.Devices[i]
		s := h.devices[g.Device]
		if s == nil || s.first+len(s.values) != number { // start a new series after a gap
			s = &deviceSeries{first: number}
			h.devices[g.Device] = s
		}
		v := deviceValue{used: g.Used, rations: g.Rations}
		if g.Utilization != nil {
			busy := float64(*g.Utilization)
			v.busy = &busy
		}
		s.values = append(s.values, v)
	}
	full := map[int]bool{}
	for i := range m.Jobs {
		if j := &m.Jobs[i]; j.State != machine.Ended && j.Error == "" {
			h.addJob(j, number, full)
		}
	}
}

// addJob adds a job's values. full has the accounts that get no further series this time: that is found out once for
// each, because a user can have thousands of jobs.
func (h *history) addJob(j *machine.Job, number int, full map[int]bool) {
	account, known := 0, false
	for n := range j.Devices {
		d := &j.Devices[n]
		if d.Used == 0 && d.Peak == 0 && d.Refused == 0 {
			continue // the limit may be for a device that does not exist
		}
		key := historyKey{j.ID(), d.Device}
		s := h.jobs[key]
		if s == nil || s.first+len(s.values) != number {
			if !known {
				account, known = accountOf(j.UID), true
			}
			if s == nil && len(h.jobs) >= maxHistory && (full[account] || !h.makeRoom(account)) {
				full[account] = true
				continue
			}
			s = &jobSeries{first: number, account: account, of: node.JobHistory{Job: j.Name, Path: j.Path, Owner: j.Owner, UID: j.UID, Created: j.Created, Device: d.Device}}
			h.jobs[key] = s
		}
		v := [4]uint64{d.Used, d.Refused, j.Died}
		if d.Compute != nil {
			v[3] = d.Compute.Used
		}
		s.values = append(s.values, v)
	}
}

// makeRoom drops the newest series of the account with the most series, if the given account has
// fewer, and reports whether it dropped one. So no user can use up the whole history.
func (h *history) makeRoom(account int) bool {
	byUser := map[int]int{}
	for _, s := range h.jobs {
		byUser[s.account]++
	}
	most := mostOf(byUser)
	if byUser[most] <= byUser[account]+1 {
		return false
	}
	var last historyKey
	for key, s := range h.jobs {
		if s.account == most && (h.jobs[last] == nil || s.first > h.jobs[last].first) {
			last = key
		}
	}
	delete(h.jobs, last)
	return true
}

// forget drops values that are older than the oldest time.
func (h *history) forget() {
	for key, s := range h.jobs {
		if over := h.first - s.first; over >= len(s.values) {
			delete(h.jobs, key)
		} else if over > historyLength {
			s.values, s.first = append([][4]uint64(nil), s.values[over:]...), h.first
		}
	}
	for device, s := range h.devices {
		if over := h.first - s.first; over >= len(s.values) {
			delete(h.devices, device)
		} else if over > historyLength {
			s.values, s.first = append([]deviceValue(nil), s.values[over:]...), h.first
		}
	}
}

// read returns the history of all devices, and of the jobs whose UID visible accepts.
func (h *history) read(visible func(uid int) bool) node.History {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := node.History{Interval: historyInterval, Times: append([]time.Time{}, h.times...), Devices: []node.DeviceHistory{}, Jobs: []node.JobHistory{}}
	for device, s := range h.devices {
		d := node.DeviceHistory{Device: device, Used: make([]*uint64, len(h.times)), Rations: make([]*uint64, len(h.times)), Utilization: make([]*float64, len(h.times))}
		for i, v := range s.values {
			if at := s.first + i - h.first; at >= 0 && at < len(h.times) {
				d.Used[at], d.Rations[at], d.Utilization[at] = &v.used, &v.rations, v.busy
			}
		}
		out.Devices = append(out.Devices, d)
	}
	for _, s := range h.jobs {
		if !visible(s.of.UID) {
			continue
		}
		j := s.of
		for n, values := range []*[]*uint64{&j.Used, &j.Refused, &j.Died, &j.Compute} {
			*values = make([]*uint64, len(h.times))
			for i := range s.values {
				if at := s.first + i - h.first; at >= 0 && at < len(h.times) {
					v := s.values[i][n]
					(*values)[at] = &v
				}
			}
		}
		out.Jobs = append(out.Jobs, j)
	}
	return out
}
