package machine

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"ration/internal/abi"
	"ration/internal/budget"
	"ration/internal/proc"
	"ration/internal/region"
)

// A device's ledger is one word, and each account is read in one piece, but they are read
// one after the other. A look at a device is repeated until what is used is the sum of what
// the processes hold: then it is one picture, of some instant. After so many looks the last
// one stands, and the device is marked.
const looks = 100

// A job that writes without pause, or that says what cannot be, is looked at for so long,
// and all jobs together for so long, until each is looked at once: a job must not keep
// those who look at others.
const (
	jobPatience = 200 * time.Millisecond
	allPatience = 500 * time.Millisecond
	// A few processes are confirmed in well under a millisecond.
	identityPatience = 10 * time.Millisecond
)

// patienceForAll is how long all jobs together are looked at, from now on.
func patienceForAll() budget.Budget { return budget.Real.For(allPatience) }

// forIdentities is for how long the kernel is asked who a job's processes are, from now on: as
// long as for a job where there is patience left for the look that begins, and otherwise a
// moment, so that no job takes from others that their processes are confirmed.
func forIdentities(p budget.Budget) budget.Budget {
	if p.Left() {
		return p.Again(jobPatience)
	}
	return p.Again(identityPatience)
}

// until calls look until it agrees, at most so many times and while there is patience. It
// returns whether it did.
func until(p budget.Budget, most int, look func() (agrees bool, err error)) (bool, error) {
	for n := 0; n < most && (n == 0 || p.Left()); n++ {
		if agrees, err := look(); agrees || err != nil {
			return agrees, err
		}
	}
	return false, nil
}

// readUsage reads the processes, what they hold, and what is used of each device.
func (j *Job) readUsage(r *region.Region, p budget.Budget) error {
	var devices [abi.Devices]Device
	var limits [abi.Devices]abi.Limit
	// Processes that join or leave meanwhile are found by asking for all of them again,
	// which asks the kernel as well: not as often.
	opened := true // just now, and with it copied
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

// readDevice reads what is used of a device, and adds what each process holds of it. index
// finds a process by its slot. What processes in ended held is free, though no process has
// needed it yet.
func (j *Job) readDevice(r *region.Region, p budget.Budget, device int, index map[int]int, ended map[int]bool, out *Device) (bool, error) {
	var held []region.Holding
	exact, err := until(p, looks, func() (agrees bool, err error) {
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
		var sum, living uint64
		for _, h := range held {
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
		*out = Device{Device: device, Used: used, Peak: max(peak, living)} // which is written a little later
		return stable && sum == used, nil
	})
	if err != nil {
		return false, err
	}
	out.Inexact = !exact
	for _, h := range held {
		i, found := index[h.Slot]
		if !found || h.Total == 0 && h.Peak == 0 {
			continue
		}
		driver, err := r.Driver(device, h.Slot)
		if err != nil {
			return false, err
		}
		j.Processes[i].Holdings = append(j.Processes[i].Holdings, Holding{Device: device, Total: h.Total, Context: h.Kind[abi.Context],
			Module: h.Kind[abi.Module], Data: h.Kind[abi.Data], Overhead: h.Kind[abi.Overhead], Peak: h.Peak, Driver: driver, BestEffort: h.BestEffort})
	}
	out.Refused = r.Refused(device)
	if out.Total, err = r.Total(device); err != nil {
		return false, err
	}
	if out.Inexact && out.Total != 0 {
		out.Used = min(out.Used, out.Total) // what is not even the sum of the accounts is no more than there is
	}
	uuid, err := r.UUID(device)
	out.UUID = uuidText(uuid)
	return exact, err
}

// addCompute adds shares and caps, and what each process has of them.
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

// readProcesses lists who has a slot, and finds them by their slots. Those that left, and
// whose slots no process has needed yet, are ended, and not in the list.
func readProcesses(r *region.Region, patient budget.Budget) (out []Process, index map[int]int, ended map[int]bool, err error) {
	r.SetAskBudget(patient.Left)
	all, err := r.Processes()
	if err != nil {
		return nil, nil, nil, err
	}
	ended = map[int]bool{}
	all = slices.DeleteFunc(all, func(p region.Process) bool {
		if p.Dead && p.Left {
			ended[p.Slot] = true
		}
		return p.Dead && p.Left
	})
	out, index = make([]Process, len(all)), map[int]int{}
	asked := owners{}
	for i, p := range all {
		out[i] = claimed(p)
		index[p.Slot] = i
		if p.Seen != 0 && patient.Left() {
			asked.ask(p.Seen)
		}
	}
	r.AskAgain() // after all have been asked for: a PID may have been given to another process
	for i, p := range all {
		out[i].identify(r, p, asked)
	}
	addParents(out)
	return out, index, ended, nil
}

// addKeepers says who has the files of processes that are ending. That is to ask for the mappings of
// every process of the machine: with thousands it takes a hundred times as long as all the rest.
func (j *Job) addKeepers(r *region.Region, patient budget.Budget) {
	for i := range j.Processes {
		if p := &j.Processes[i]; p.State == Ending {
			p.KeptBy = r.KeptBy(p.Slot, patient.Left)
		}
	}
}

// addParents says which processes were started by others of the job.
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

// uuidText renders a UUID as the driver does, or "" for none.
func uuidText(words [2]uint64) string {
	if words == [2]uint64{} {
		return ""
	}
	b := make([]byte, 0, 16)
	b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, words[0]), words[1])
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
