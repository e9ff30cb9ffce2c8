package gputest

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"ration/check/expect"
	"ration/check/observer"
	"ration/internal/humanfmt"
	"ration/internal/limit"
	"ration/internal/node"
	"ration/internal/region"
)

const (
	mib = uint64(limit.MiB)
	gib = uint64(limit.GiB)
)

// Ration's count for a process may differ from the driver's by this much: a number
// of bytes, or a fraction of the driver's count if that is more.
const (
	toleranceBytes = 16 * mib
	toleranceShare = 100 // one hundredth
)

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

// knownPIDs returns the host PIDs of all processes that were ever in the job's region.
func (t *trial) knownPIDs() map[int]bool {
	pids := map[int]bool{}
	t.known.Range(func(pid, _ any) bool {
		pids[pid.(int)] = true
		return true
	})
	return pids
}

// readPIDs returns the host PIDs of the processes in the job's region, and adds them
// to the known ones: a process leaves the region before the driver has released its
// memory.
func (t *trial) readPIDs() (map[int]bool, error) {
	status := node.ReadJob(t.job, node.Options{ReadOnly: true})
	if status.Err() != nil {
		return nil, status.Err()
	}
	pids := map[int]bool{}
	for _, p := range status.Processes {
		if p.HostPID != 0 {
			pids[p.HostPID] = true
			t.known.Store(p.HostPID, true)
		}
	}
	return pids, nil
}

// driverCounts returns the driver's counts for some processes on the tested device,
// in bytes by PID.
func (t *trial) driverCounts(pids map[int]bool) (map[int]uint64, error) {
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
func (t *trial) accounts() []account {
	status := node.ReadJob(t.job, node.Options{})
	t.must(status.Err())
	out := map[int]account{}
	for _, p := range status.Processes {
		expect.Must(t, p.HostPID != 0, "the host PID of pid", p.PID, "is not known")
		t.known.Store(p.HostPID, true)
		out[p.HostPID] = account{pid: p.HostPID}
		for _, h := range p.Holdings {
			if h.Device == t.device {
				out[p.HostPID] = account{pid: p.HostPID, ration: h.Total, data: h.Data, module: h.Module}
			}
		}
	}
	all, err := t.driver.Processes()
	t.must(err)
	for _, p := range all {
		a, inJob := out[p.PID]
		switch {
		case p.Device != t.device: // which is not under test
		case inJob:
			a.driver += p.Used
			out[p.PID] = a
		case t.started(p.PID):
			t.Fatalf("pid %d uses %s by the driver's count, and is not in the region", p.PID, humanfmt.Bytes(p.Used))
		}
	}
	maps.DeleteFunc(out, func(_ int, a account) bool { return a.ration == 0 && a.driver == 0 })
	return slices.SortedFunc(maps.Values(out), func(a, b account) int { return a.pid - b.pid })
}

// compare compares the two counts of every process, which must be idle. step is the
// name of the comparison in errors.
func (t *trial) compare(step string) []account {
	t.Helper()
	all := t.accounts()
	expect.Must(t, len(all) != 0, step, "no process uses the device")
	var sum uint64
	for i := range all {
		all[i].ration -= min(all[i].ration, t.unlisted)
		sum += all[i].driver
	}
	t.mostAtRest = max(t.mostAtRest, sum)
	largest, worst := differences(all)
	t.difference(largest)
	if worst != nil {
		t.Fatalf("%s: pid %d uses %s by ration's count, %s by the driver's (%+d bytes)",
			step, worst.pid, humanfmt.Bytes(worst.ration), humanfmt.Bytes(worst.driver), worst.difference())
	}
	t.checkLimit(step, sum, len(all))
	return all
}

// difference keeps a difference between the two counts if it is the largest so far.
func (f *findings) difference(bytes int64) {
	if abs(bytes) > abs(f.largest) {
		f.largest = bytes
	}
}

// lazyLoad is by how much the driver's count may exceed the limit for each process,
// in bytes: the driver loads code when it is first used, and ration can only charge
// that afterwards. docs/coverage.md says so.
const lazyLoad = 32 * mib

// checkLimit compares the driver's count for n processes together with the limit.
func (t *trial) checkLimit(step string, sum uint64, n int) {
	if sum > t.limit+(lazyLoad+t.poolSlack)*uint64(n) {
		t.Fatalf("%s: the driver counts %s, which exceeds the limit of %s by %s",
			step, humanfmt.Bytes(sum), humanfmt.Bytes(t.limit), humanfmt.Bytes(sum-t.limit))
	}
}

// countObserver reads both counts of a job again and again while its programs work. Its
// fields are final after stop. Sizes are in bytes.
type countObserver struct {
	readings    int
	mostDriver  uint64    // the driver's highest count for the whole job
	differences []float64 // ration's count minus the driver's, for each reading

	loop *observer.Loop
}

const (
	readEvery = 5 * time.Millisecond
	pidsEvery = 10 * readEvery // how often new processes are looked for
)

// observeCounts starts to observe the trial's job, which need not exist yet. Callers defer
// stop.
func (t *trial) observeCounts() *countObserver {
	o := &countObserver{}
	found, lastPIDs := false, time.Time{}
	o.loop = observer.Start(readEvery, func() error {
		if time.Since(lastPIDs) > pidsEvery {
			if _, err := t.readPIDs(); err != nil {
				if found {
					return err
				}
				return nil // not made yet
			}
			found, lastPIDs = true, time.Now()
		}
		return o.read(t)
	})
	return o
}

// read takes one reading. The counts of a working job are not read at one instant,
// so that only the distribution of many differences means something.
func (o *countObserver) read(t *trial) error {
	counts, err := t.driverCounts(t.knownPIDs()) // a process that has left the region may still use memory
	if err != nil {
		return err
	}
	var driver uint64
	for _, bytes := range counts {
		driver += bytes
	}
	if driver == 0 {
		return nil // no process uses the device
	}
	o.readings++
	o.mostDriver = max(o.mostDriver, driver)
	r, err := region.OpenMapped(t.job.Path)
	if err != nil {
		return err
	}
	defer r.Close()
	o.differences = append(o.differences, float64(int64(r.Used(t.device))-int64(driver)))
	return nil
}

// stop ends the readings. It may be called more than once.
func (o *countObserver) stop() error { return o.loop.Stop() }

// checkObserved ends the readings over n programs and checks the limit, also by what was
// read at rest: programs may be done before the first reading.
func (t *trial) checkObserved(o *countObserver, n int) {
	t.Helper()
	t.must(o.stop())
	o.mostDriver = max(o.mostDriver, t.mostAtRest)
	t.checkLimit("at some moment", o.mostDriver, n)
}

// observed describes the readings.
func (o *countObserver) observed(limit uint64) string {
	return fmt.Sprintf("at most %s of %s by the driver in %s readings", humanfmt.Bytes(o.mostDriver), humanfmt.Bytes(limit), humanfmt.Count(o.readings))
}
