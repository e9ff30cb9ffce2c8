package gputest

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"ration/internal/humanfmt"
	"ration/internal/limit"
	"ration/internal/reap"
)

// What our count may differ from the driver's, for a process: 16 MiB, or a
// hundredth of what it has.
const (
	near  = 16 * uint64(limit.MiB)
	share = 100
)

// account is one process, by us and by the driver.
type account struct {
	pid          int // the host's
	name         string
	ours, driver uint64
	data, module uint64
}

// off is what our count has more than the driver's.
func (a account) off() int64 { return int64(a.ours) - int64(a.driver) }

// agrees says whether the two counts are near enough.
func (a account) agrees() bool {
	off := a.off()
	return uint64(max(off, -off)) <= max(near, a.driver/share)
}

// differences finds the largest of all, and, of the processes whose counts do not
// agree, the one that is off most: a large one may be off more and still agree.
func differences(all []account) (largest int64, worst *account) {
	for i, a := range all {
		if abs(a.off()) > abs(largest) {
			largest = a.off()
		}
		if !a.agrees() && (worst == nil || abs(a.off()) > abs(worst.off())) {
			worst = &all[i]
		}
	}
	return largest, worst
}

// roll are the processes that were ever seen in the books, by the host's numbers. They
// leave the books before the driver has taken back what they had.
type roll struct {
	mu   sync.Mutex // a watch adds as well
	pids map[int]bool
}

func (r *roll) add(pids map[int]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pids == nil {
		r.pids = map[int]bool{}
	}
	maps.Copy(r.pids, pids)
}

func (r *roll) all() map[int]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.pids)
}

// pids are the processes in the books, by the host's numbers.
func (s *Stage) pids() (map[int]bool, error) {
	status := reap.ReadJob(s.job, reap.Options{ReadOnly: true})
	if status.Err() != nil {
		return nil, status.Err()
	}
	pids := map[int]bool{}
	for _, p := range status.Processes {
		if p.HostPID != 0 {
			pids[p.HostPID] = true
		}
	}
	s.roll.add(pids)
	return pids, nil
}

// held is what the driver has for some processes, on the device that is tested.
func (s *Stage) held(pids map[int]bool) (map[int]uint64, error) {
	all, err := s.driver.Processes()
	if err != nil {
		return nil, err
	}
	out := map[int]uint64{}
	for _, p := range all {
		if p.Device == s.device && pids[p.PID] {
			out[p.PID] += p.Used
		}
	}
	return out, nil
}

// accounts are the processes of the job that have something of the device.
func (s *Stage) accounts() ([]account, error) {
	status := reap.ReadJob(s.job, reap.Options{})
	if status.Err() != nil {
		return nil, status.Err()
	}
	out, pids := map[int]account{}, map[int]bool{}
	for _, p := range status.Processes {
		if p.HostPID == 0 {
			return nil, fmt.Errorf("the host's PID of pid %d is not known", p.PID)
		}
		pids[p.HostPID] = true
		for _, h := range p.Holdings {
			if h.Device == s.device {
				out[p.HostPID] = account{pid: p.HostPID, name: p.Name, ours: h.Total, data: h.Data, module: h.Module}
			}
		}
	}
	s.roll.add(pids)
	all, err := s.driver.Processes()
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		if p.Device != s.device {
			continue
		}
		if !pids[p.PID] {
			if s.descends(p.PID) {
				return nil, fmt.Errorf("pid %d has %s by the driver's count, and is not in the books", p.PID, humanfmt.Bytes(p.Used))
			}
			continue // somebody else's
		}
		a := out[p.PID]
		a.pid, a.driver = p.PID, a.driver+p.Used
		out[p.PID] = a
	}
	return slices.SortedFunc(maps.Values(out), func(a, b account) int { return a.pid - b.pid }), nil
}

// agree compares the two counts of every process that is at rest, and says where.
// The driver's must not pass the limit either.
func (s *Stage) agree(where string) ([]account, error) {
	all, err := s.accounts()
	if err != nil {
		return nil, err
	}
	var sum uint64
	for i := range all {
		all[i].ours -= min(all[i].ours, s.unlisted)
		sum += all[i].driver
	}
	s.most = max(s.most, sum)
	largest, worst := differences(all)
	s.note("off_"+where, largest)
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: no process has anything", where)
	}
	if worst != nil {
		return all, fmt.Errorf("%s: pid %d holds %s by our count, %s by the driver's (%+d bytes)",
			where, worst.pid, humanfmt.Bytes(worst.ours), humanfmt.Bytes(worst.driver), worst.off())
	}
	return all, s.withinLimit(where, sum, len(all))
}

// lazily is by how much the driver's count may pass the limit for each process: what
// the driver takes by itself, for code that it loads when it is first used, is booked
// when it is seen, and cannot be refused. docs/coverage.md says so.
const lazily = 32 * mib

// withinLimit judges what the driver counts for n processes together.
func (s *Stage) withinLimit(where string, sum uint64, n int) error {
	if sum <= s.limit {
		return nil
	}
	over := sum - s.limit
	s.note("over", int64(over))
	if over > (lazily+s.undone)*uint64(n) {
		return fmt.Errorf("%s: the driver counts %s, %s beyond the limit of %s", where, humanfmt.Bytes(sum), humanfmt.Bytes(over), humanfmt.Bytes(s.limit))
	}
	return nil
}

// note keeps a figure; the worst where there are several of one name.
func (s *Stage) note(name string, value int64) {
	if was, there := s.values[name]; !there || abs(value) > abs(was) {
		s.values[name] = value
	}
}

// worst is the largest difference that was noted.
func (s *Stage) worst() (off int64) {
	for name, value := range s.values {
		if len(name) > 4 && name[:4] == "off_" && abs(value) > abs(off) {
			off = value
		}
	}
	return off
}

// seeOff says what the largest difference was.
func (s *Stage) seeOff() {
	off := s.worst()
	sign := "+"
	if off < 0 {
		sign = "-"
	}
	s.see("counts within %s%s", sign, humanfmt.Bytes(uint64(abs(off))))
}

func abs(n int64) int64 { return max(n, -n) }
