package machine

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"ration/internal/abi"
	"ration/internal/proc"
	"ration/internal/region"
	"ration/internal/safepath"
)

// A device's use and the accounts of its processes are each read atomically, but one after the other. So they
// are read again until the use equals the sum of the accounts: then both are from the same instant. After
// maxTries the last result is used, and the device is marked (Device.Inexact).
const maxTries = 100

// These bound the time for one job, and for all jobs together. After that each job is read only
// once: a job that writes without pause, or whose region contradicts itself, must not delay the
// others.
const (
	jobBudget = 200 * time.Millisecond
	allBudget = 500 * time.Millisecond
	// Querying the kernel about a few processes takes well under a millisecond.
	identityBudget = 10 * time.Millisecond
)

// budgetForAll returns the time budget for all jobs together, starting now.
func budgetForAll() safepath.Budget { return safepath.RealClock.For(allBudget) }

// forIdentities returns the time budget for querying the identities of a job's processes, starting
// now. If p is used up, it returns a short budget, so that every job gets some.
func forIdentities(p safepath.Budget) safepath.Budget {
	if p.Left() {
		return p.Again(jobBudget)
	}
	return p.Again(identityBudget)
}

// until calls look until it agrees, at most most times and while there is time left. It reports
// whether it agreed.
func until(p safepath.Budget, most int, look func() (agrees bool, err error)) (bool, error) {
	for n := 0; n < most && (n == 0 || p.Left()); n++ {
		if agrees, err := look(); agrees || err != nil {
			return agrees, err
		}
	}
	return false, nil
}

// readUsage reads the processes, the memory that they hold, and the use of each device.
func (j *Job) readUsage(r *region.Region, p safepath.Budget) error {
	var devices [abi.Devices]Device
	var limits [abi.Devices]abi.Limit
	// If processes join or leave during the read, it lists all of them again. That also queries the
	// kernel, so it is done less often.
	opened := true // the region was just copied
	_, err := until(p, 3, func() (bool, error) {
		if err := refreshUnless(opened, r); err != nil {
			return false, err
		}
		opened = false
		processes, index, ended, err := readProcesses(r, forIdentities(p))
		if err != nil {
			return false, err
		}
		j.Processes = processes
		all := true
		for d := range devices {
			exact, err := j.readDevice(r, p, d, index, ended, &devices[d])
			if err != nil {
				return false, err
			}
			if limits[d], err = r.Limit(d); err != nil {
				return false, err
			}
			all = all && exact
		}
		return all, nil
	})
	if err != nil {
		return err
	}
	if err := j.addCompute(r, &devices); err != nil {
		return err
	}
	for d, limit := range limits {
		devices[d].Limited, devices[d].Limit = limit.Limited(), limit.Bytes()
		if hidden, err := r.Hidden(d); err != nil {
			return err
		} else if hidden && devices[d].Used == 0 {
			continue
		}
		if limit.IsSet() || devices[d].Used > 0 || devices[d].Peak > 0 || devices[d].Compute != nil {
			j.Devices = append(j.Devices, devices[d])
		}
	}
	j.dropUnknown()
	return nil
}

func refreshUnless(fresh bool, r *region.Region) error {
	if fresh {
		return nil
	}
	return r.Refresh()
}

// readDevice reads the use of a device, and adds how much of it each process holds. index maps
// slots to processes. Memory of the processes in ended is free, even if no process has claimed it
// yet.
func (j *Job) readDevice(r *region.Region, p safepath.Budget, device int, index map[int]int, ended map[int]bool, out *Device) (bool, error) {
	var held []region.Holding
	exact, err := until(p, maxTries, func() (agrees bool, err error) {
		stable, err := r.RefreshDevice(device)
		if err != nil {
			return false, err
		}
		used, peak, err := r.Usage(device)
		if err != nil {
			return false, err
		}
		if held, err = r.Holdings(device, held[:0]); err != nil {
			return false, err
		}
		var sum, living, aside uint64
		for _, h := range held {
			aside += h.Aside
			if ended[h.Slot] {
				used -= min(used, h.Total)
			}
			if i, shown := index[h.Slot]; shown {
				sum += h.Total
				if j.Processes[i].State != Dead {
					living += h.Total
				}
			}
		}
		*out = Device{Device: device, Used: used, Aside: aside, Peak: max(peak, living)} // the peak is written a little later than the use
		return stable && sum == used, nil
	})
	if err != nil {
		return false, err
	}
	out.Inexact = !exact
	for _, h := range held {
		i, found := index[h.Slot]
		if !found || h.Total == 0 && h.Aside == 0 && h.Peak == 0 {
			continue
		}
		driver, err := r.Driver(device, h.Slot)
		if err != nil {
			return false, err
		}
		j.Processes[i].Holdings = append(j.Processes[i].Holdings, Holding{Device: device, Total: h.Total, Context: h.Kind[abi.Context],
			Module: h.Kind[abi.Module], Data: h.Kind[abi.Data], Overhead: h.Kind[abi.Overhead], Peak: h.Peak, Exported: h.Exported, Aside: h.Aside, Driver: driver, BestEffort: h.BestEffort})
	}
	out.Refused = r.Refused(device)
	if out.Total, err = r.Total(device); err != nil {
		return false, err
	}
	if out.Inexact && out.Total != 0 {
		out.Used = min(out.Used, out.Total)
	}
	uuid, err := r.UUID(device)
	out.UUID = uuidText(uuid)
	return exact, err
}

// addCompute adds shares and caps, and the part of each process.
func (j *Job) addCompute(r *region.Region, devices *[abi.Devices]Device) (err error) {
	now := monotonic()
	for d := range devices {
		c, err := readCompute(r, d)
		if err != nil {
			return err
		}
		if devices[d].Compute = c; c == nil {
			continue
		}
		for i := range j.Processes {
			p := &j.Processes[i]
			for n := range p.Holdings {
				h := &p.Holdings[n]
				if h.Device != d {
					continue
				}
				if h.Compute, err = readProcessCompute(r, c, *h, p.Slot, p.State != Dead, now); err != nil {
					return err
				}
				c.Working += h.Compute.Working
			}
		}
	}
	return nil
}

// readProcesses lists the processes that have a slot, with an index by slot. ended has the
// processes that left, if no other process has needed their slots yet; they are not in the list.
func readProcesses(r *region.Region, asking safepath.Budget) (out []Process, index map[int]int, ended map[int]bool, err error) {
	r.SetAskBudget(asking.Left)
	all, err := r.Processes()
	if err != nil {
		return nil, nil, nil, err
	}
	ended = map[int]bool{}
	all = slices.DeleteFunc(all, func(p region.Process) bool {
		gone := p.Dead && p.Left && !p.Lent
		if gone {
			ended[p.Slot] = true
		}
		return gone
	})
	out, index = make([]Process, len(all)), map[int]int{}
	asked := owners{}
	for i, p := range all {
		out[i] = claimed(p)
		index[p.Slot] = i
		if p.Seen != 0 && asking.Left() {
			asked.ask(p.Seen)
		}
	}
	r.AskAgain() // after the identities, because a PID may have been reused
	for i, p := range all {
		out[i].identify(r, p, asked)
	}
	addParents(out)
	return out, index, ended, nil
}

// addKeepers finds the processes that keep the files of ending ones open. It reads the mappings of
// every process of the machine: with thousands of processes it takes a hundred times as long as
// everything else.
func (j *Job) addKeepers(r *region.Region, asking safepath.Budget) {
	for i := range j.Processes {
		if p := &j.Processes[i]; p.State == Ending {
			p.KeptBy = r.KeptBy(p.Slot, asking.Left)
		}
	}
}

// addParents finds out which processes were started by others of the job.
func addParents(all []Process) {
	if len(all) < 2 {
		return
	}
	in := map[int]bool{}
	for _, p := range all {
		if p.Verified && p.HostPID != 0 {
			in[p.HostPID] = true
		}
	}
	parents := map[int]int{} // one process may have many slots
	for i := range all {
		pid := all[i].HostPID
		if !all[i].Verified || !region.OnHost() {
			continue
		}
		parent, known := parents[pid]
		if !known {
			parent = proc.Ancestor(pid, func(above int) bool { return in[above] })
			parents[pid] = parent
		}
		all[i].Parent = parent
	}
}

// uuidText formats a UUID as the driver does; "" for none.
func uuidText(words [2]uint64) string {
	if words == [2]uint64{} {
		return ""
	}
	b := make([]byte, 0, 16)
	b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, words[0]), words[1])
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
