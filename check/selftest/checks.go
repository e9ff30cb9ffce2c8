package selftest

import (
	"slices"
	"sync"
	"time"

	"ration/check/harness/cuda"
	"ration/check/observer"
	"ration/internal/humanfmt"
	"ration/internal/limit"
	"ration/internal/region"
)

// driverObserver asks the driver how much of the device is in use, through a
// program outside the job: the library has no part in the answer.
type driverObserver struct {
	observer.Tally // final after stop

	program *cuda.Program
	mu      sync.Mutex // one question at a time
	limit   uint64     // in bytes
	loop    *observer.Loop
}

// askEvery is the pause between two questions to the driver. Each takes CPU time
// of two processes away from the programs under test.
const askEvery = 200 * time.Microsecond

func startDriverObserver(m *cuda.Machine, limit uint64) (*driverObserver, error) {
	p, err := m.Start(false)
	if err != nil {
		return nil, err
	}
	if _, err := p.Do(phaseWithin, "init"); err != nil {
		p.Close()
		return nil, err
	}
	return &driverObserver{program: p, limit: limit}, nil
}

// start asks again and again, until stop.
func (d *driverObserver) start() {
	d.loop = observer.Start(askEvery, func() error {
		used, err := d.used()
		if err == nil {
			d.Add(used, d.limit)
		}
		return err
	})
}

func (d *driverObserver) stop() error {
	if d.loop == nil {
		return nil
	}
	return d.loop.Stop()
}

func (d *driverObserver) close() {
	_ = d.stop() // runPhases has reported its error, or another one
	d.program.Close()
}

// used asks once.
func (d *driverObserver) used() (uint64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.program.Used(phaseWithin)
}

// checkLimit uses three sources: the observer of the region, the peak that the
// region itself keeps, and the driver, which knows no limit.
func (r *run) checkLimit(o observer.Tally) {
	d, most := r.driver.Tally, max(o.Most, r.region.Peak(0), r.driver.Most)
	r.add("limit held", o.Exceeded == 0 && d.Exceeded == 0 && most <= r.Limit && o.Readings > 0 && d.Readings > 0, map[string]int64{
		"readings": o.Readings, "exceeded": o.Exceeded, "driver_readings": d.Readings, "driver_exceeded": d.Exceeded,
		"most_bytes": int64(most), "limit_bytes": int64(r.Limit),
	}, "exceeded in %d of %s readings and %d of %s by the driver; the most was %v of %v", o.Exceeded, humanfmt.Count(o.Readings),
		d.Exceeded, humanfmt.Count(d.Readings), limit.Size(most), limit.Size(r.Limit))
}

// checkHostPIDs compares the region's host PIDs with the PIDs that this process
// has for its children. Those are the host's only if this process runs there.
func (r *run) checkHostPIDs() error {
	const name = "host PIDs"
	if !region.OnHost() {
		r.Checks = append(r.Checks, Check{name, Skip, "this is a PID namespace of its own; run it on the host to see", nil})
		return nil
	}
	processes, err := r.region.Processes()
	if err != nil {
		return err
	}
	var found int64
	for _, program := range r.programs {
		pid := program.PID()
		if slices.ContainsFunc(processes, func(p region.Process) bool { return p.HostPID == pid && p.PID == pid }) {
			found++
		}
	}
	r.add(name, found == int64(r.Processes), map[string]int64{"found": found}, "%d of %d", found, r.Processes)
	return nil
}

// checkDeviceSize asks each program how large its device is.
func (r *run) checkDeviceSize() error {
	answers, err := r.tell(1, same("info"))
	if err != nil {
		return err
	}
	var right int64
	for _, a := range answers {
		if len(a.Numbers) == 3 && uint64(a.Numbers[1]) == r.Limit {
			right++
		}
	}
	r.add("device size", right == int64(r.Processes), map[string]int64{"right": right},
		"%d of %d see a device of %v", right, r.Processes, limit.Size(r.Limit))
	return nil
}

// balance is how much of the device is in use by three counts: two of the region
// and the driver's.
type balance struct {
	granted, held, driver uint64
}

// readBalance reads all counts. They are equal only while no program allocates or
// frees.
func (r *run) readBalance() (balance, error) {
	b, err := observer.ReadBalance(r.region, 0)
	if err != nil {
		return balance{}, err
	}
	used, err := r.driver.used()
	return balance{b.Granted, b.Held, used}, err
}

// checkAccounts compares the counts from when all programs held memory, and those
// from now, after they have ended.
func (r *run) checkAccounts(held balance) error {
	end, err := r.readBalance()
	if err != nil {
		return err
	}
	processes, err := r.region.Processes()
	if err != nil {
		return err
	}
	all := uint64(r.Processes) * (atRest + contextCost)
	ok := held == balance{all, all, all} && end == balance{} && len(processes) == 0
	r.add("accounts agree", ok, map[string]int64{
		"held_granted_bytes": int64(held.granted), "held_sum_bytes": int64(held.held), "held_driver_bytes": int64(held.driver),
		"end_granted_bytes": int64(end.granted), "end_sum_bytes": int64(end.held), "end_driver_bytes": int64(end.driver),
		"end_slots": int64(len(processes)),
	}, "%v granted, %v held, %v in the driver; at the end %v, %v, %v and %d processes", limit.Size(held.granted), limit.Size(held.held),
		limit.Size(held.driver), limit.Size(end.granted), limit.Size(end.held), limit.Size(end.driver), len(processes))
	return nil
}

// checkTotalTime is the last check.
func (r *run) checkTotalTime() {
	total := time.Since(r.began)
	r.add("total time", r.attached < attachWithin, map[string]int64{"total_ns": int64(total), "attached_ns": int64(r.attached)},
		"%s; all had attached %s after the start", humanfmt.Duration(total), humanfmt.Duration(r.attached))
}
