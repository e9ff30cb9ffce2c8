package gputest

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"ration/internal/humanfmt"
	"ration/internal/reap"
)

// Ration's count for a process may differ from the driver's by this much: a number
// of bytes, or a fraction of the driver's count if that is more.
const (
	toleranceBytes = 16 * mib
	toleranceShare = 100 // one hundredth
)

// differencePrefix begins the names of recorded differences between the two counts.
const differencePrefix = "off_"

// account is a process's device memory by ration's count and by the driver's, in
// bytes.
type account struct {
	pid          int // the host's
	ration       uint64
	driver       uint64
	data, module uint64 // parts of ration's count
}

// difference returns ration's count minus the driver's.
func (a account) difference() int64 { return int64(a.ration) - int64(a.driver) }

func (a account) withinTolerance() bool {
	return uint64(abs(a.difference())) <= max(toleranceBytes, a.driver/toleranceShare)
}

// differences returns the largest difference of all accounts, and the account with
// the largest difference beyond the tolerance. The two may belong to different
// accounts, since a large account is allowed more.
func differences(accounts []account) (largest int64, worst *account) {
	for i, a := range accounts {
		if abs(a.difference()) > abs(largest) {
			largest = a.difference()
		}
		if !a.withinTolerance() && (worst == nil || abs(a.difference()) > abs(worst.difference())) {
			worst = &accounts[i]
		}
	}
	return largest, worst
}

// pidSet is a set of host PIDs that several goroutines add to.
type pidSet struct {
	mu   sync.Mutex
	pids map[int]bool // guarded by mu
}

func (s *pidSet) add(pids map[int]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pids == nil {
		s.pids = map[int]bool{}
	}
	maps.Copy(s.pids, pids)
}

func (s *pidSet) all() map[int]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.pids)
}

// readPIDs returns the host PIDs of the processes in the job's region, and adds them
// to the known ones: a process leaves the region before the driver has released its
// memory.
func (t *Trial) readPIDs() (map[int]bool, error) {
	status := reap.ReadJob(t.job, reap.Options{ReadOnly: true})
	if status.Err() != nil {
		return nil, status.Err()
	}
	pids := map[int]bool{}
	for _, p := range status.Processes {
		if p.HostPID != 0 {
			pids[p.HostPID] = true
		}
	}
	t.known.add(pids)
	return pids, nil
}

// driverCounts returns the driver's counts for some processes on the tested device,
// in bytes by PID.
func (t *Trial) driverCounts(pids map[int]bool) (map[int]uint64, error) {
	all, err := t.driver.Processes()
	if err != nil {
		return nil, err
	}
	out := map[int]uint64{}
	for _, p := range all {
		if p.Device == t.device && pids[p.PID] {
			out[p.PID] += p.Used
		}
	}
	return out, nil
}

// accounts returns the accounts of all processes of the job that use the tested
// device.
func (t *Trial) accounts() ([]account, error) {
	status := reap.ReadJob(t.job, reap.Options{})
	if status.Err() != nil {
		return nil, status.Err()
	}
	out, pids := map[int]account{}, map[int]bool{}
	for _, p := range status.Processes {
		if p.HostPID == 0 {
			return nil, fmt.Errorf("the host PID of pid %d is not known", p.PID)
		}
		pids[p.HostPID] = true
		for _, h := range p.Holdings {
			if h.Device == t.device {
				out[p.HostPID] = account{pid: p.HostPID, ration: h.Total, data: h.Data, module: h.Module}
			}
		}
	}
	t.known.add(pids)
	all, err := t.driver.Processes()
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		if p.Device != t.device {
			continue
		}
		if !pids[p.PID] {
			if t.started(p.PID) {
				return nil, fmt.Errorf("pid %d uses %s by the driver's count, and is not in the region", p.PID, humanfmt.Bytes(p.Used))
			}
			continue // a process of another job, or of none
		}
		a := out[p.PID]
		a.pid, a.driver = p.PID, a.driver+p.Used
		out[p.PID] = a
	}
	return slices.SortedFunc(maps.Values(out), func(a, b account) int { return a.pid - b.pid }), nil
}

// compare compares the two counts of every process, which must be idle. step is the
// name of the comparison in the report and in errors.
func (t *Trial) compare(step string) ([]account, error) {
	all, err := t.accounts()
	if err != nil {
		return nil, err
	}
	var sum uint64
	for i := range all {
		all[i].ration -= min(all[i].ration, t.unlisted)
		sum += all[i].driver
	}
	t.mostAtRest = max(t.mostAtRest, sum)
	largest, worst := differences(all)
	t.record(differencePrefix+step, largest)
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: no process uses the device", step)
	}
	if worst != nil {
		return all, fmt.Errorf("%s: pid %d uses %s by ration's count, %s by the driver's (%+d bytes)",
			step, worst.pid, humanfmt.Bytes(worst.ration), humanfmt.Bytes(worst.driver), worst.difference())
	}
	return all, t.checkLimit(step, sum, len(all))
}

// lazyLoad is by how much the driver's count may exceed the limit for each process,
// in bytes: the driver loads code when it is first used, and ration can only charge
// that afterwards. docs/coverage.md says so.
const lazyLoad = 32 * mib

// checkLimit compares the driver's count for n processes together with the limit.
func (t *Trial) checkLimit(step string, sum uint64, n int) error {
	if sum <= t.limit {
		return nil
	}
	over := sum - t.limit
	t.record("over", int64(over))
	if over > (lazyLoad+t.poolSlack)*uint64(n) {
		return fmt.Errorf("%s: the driver counts %s, which exceeds the limit of %s by %s", step, humanfmt.Bytes(sum), humanfmt.Bytes(t.limit), humanfmt.Bytes(over))
	}
	return nil
}
