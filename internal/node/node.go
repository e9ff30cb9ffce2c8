// Package node puts together the picture of a whole machine: the jobs, as package reap reads
// them, the devices, as the driver describes them, the processes that hold device memory and
// belong to no job, and what an operator should know of it. It is for commands, and asks the
// driver; package machine, which has the types, needs none.
package node

import (
	"os"
	"slices"

	"ration/internal/gpu"
	"ration/internal/job"
	"ration/internal/proc"
	"ration/internal/reap"
	"ration/internal/termtext"
	"ration/machine"
)

// Driver is what is asked of a driver.
type Driver interface {
	Describe() []gpu.Device
	Status(device int) (gpu.Status, error)
	Processes() ([]gpu.Process, error)
}

// Reader reads the machine, once or again and again, and keeps the driver open in between. It is
// not for use by several goroutines at once. Its zero value is ready.
type Reader struct{ session gpu.Session }

// Close ends the use of the driver.
func (r *Reader) Close() { r.session.Close() }

// Read reads the machine. The error says why the jobs could not be listed.
func (r *Reader) Read(opts reap.Options) (machine.Machine, error) {
	m, err := reap.Read(opts)
	if err == nil {
		r.AddDriver(&m)
		m.Findings = append(m.Findings, Findings(&m)...)
	}
	return m, err
}

// AddDriver adds what the driver says, where there is one.
func (r *Reader) AddDriver(m *machine.Machine) {
	driver, err := r.session.Driver()
	if err == nil && !addDriver(m, driver) {
		r.session.Failed()
	}
}

// Read is Reader.Read, once.
func Read(opts reap.Options) (machine.Machine, error) {
	var r Reader
	defer r.Close()
	return r.Read(opts)
}

// AddFrom adds what a driver says, and then what an operator should know.
func AddFrom(m *machine.Machine, driver Driver) {
	if driver != nil {
		addDriver(m, driver)
	}
	m.Findings = append(m.Findings, Findings(m)...)
}

// addDriver adds the devices, what the driver counts for each process of a job, and those of
// no job. It reports whether the driver has answered.
func addDriver(m *machine.Machine, driver Driver) bool {
	devices := driver.Describe()
	for _, d := range devices {
		g := machine.GPU{Device: d.Index, UUID: termtext.Printable(d.UUID), Name: termtext.Printable(d.Name), MIG: d.MIG, Total: uint64(d.Total)}
		if s, err := driver.Status(d.Index); err == nil {
			g.Used, g.Temperature, g.Power, g.Utilization = s.Used, s.Temperature, s.Power, s.Utilization
		}
		m.Devices = append(m.Devices, g)
	}
	addRations(m)
	reported, err := driver.Processes()
	if err != nil {
		m.Findings = append(m.Findings, machine.Finding{Kind: machine.DriverSilent, Device: -1,
			Text: "the driver does not say which processes hold memory: " + termtext.Printable(err.Error()), Remedy: "try nvidia-smi"})
		return false
	}
	addProcesses(m, reported)
	return true
}

// DeviceOf returns the index in m.Devices of a job's device, or -1: by its UUID, or, where no
// process of the job has found that out yet, by its number.
func DeviceOf(m *machine.Machine, d *machine.Device) int {
	if d.UUID != "" {
		return slices.IndexFunc(m.Devices, func(g machine.GPU) bool { return g.UUID == d.UUID })
	}
	return slices.IndexFunc(m.Devices, func(g machine.GPU) bool { return g.Device == d.Device })
}

// addRations adds up what was handed out of each device.
func addRations(m *machine.Machine) {
	for i := range m.Jobs {
		j := &m.Jobs[i]
		if j.State == machine.Ended {
			continue
		}
		for n := range j.Devices {
			d := &j.Devices[n]
			at := DeviceOf(m, d)
			switch {
			case at < 0:
			case d.Limited:
				m.Devices[at].Rations += min(d.Limit, ^m.Devices[at].Rations) // a job may claim any limit
				m.Devices[at].Jobs++
			case d.Used > 0:
				m.Devices[at].Unlimited++
			}
		}
	}
}

// addProcesses adds what the driver counts: to the processes of jobs, and those of no job.
func addProcesses(m *machine.Machine, reported []gpu.Process) {
	type use struct{ device, pid int }
	ours := map[use]*machine.Holding{}
	inJob := map[int]bool{} // PIDs of processes that are in a job, by the kernel's word
	for i := range m.Jobs {
		j := &m.Jobs[i]
		number := map[int]int{} // the machine's number of a job's device
		for n := range j.Devices {
			if at := DeviceOf(m, &j.Devices[n]); at >= 0 {
				number[j.Devices[n].Device] = m.Devices[at].Device
			}
		}
		for _, pid := range j.HostPIDs() { // what one only claims must not take another process off the list
			inJob[pid] = true
		}
		for _, p := range j.Processes {
			if p.HostPID == 0 {
				continue
			}
			for n := range p.Holdings {
				device, known := number[p.Holdings[n].Device]
				// Nor must it take from another process what the driver counts for that one.
				if of := (use{device, p.HostPID}); known && (p.Verified || ours[of] == nil) {
					ours[of] = &p.Holdings[n]
				}
			}
		}
	}
	for _, r := range reported {
		if h := ours[use{r.Device, r.PID}]; h != nil {
			h.Driver, h.DriverNow = r.Used, true
		}
		if inJob[r.PID] {
			continue
		}
		out := machine.Outside{Device: r.Device, PID: r.PID, UID: -1, Used: r.Used}
		if uid, name, _, err := proc.Owner(r.PID); err == nil {
			out.UID, out.User, out.Name = uid, proc.UserName(uid), termtext.Printable(name)
			out.Cgroup, out.Container = proc.Cgroup(r.PID)
		}
		// Jobs of other users are not read, so theirs may be in one.
		if !job.AllUsers() && out.UID != os.Geteuid() {
			continue
		}
		m.Outside = append(m.Outside, out)
	}
}
