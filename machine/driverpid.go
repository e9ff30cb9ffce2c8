package machine

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"

	"ration/internal/gpu"
	"ration/internal/humanfmt"
	"ration/internal/region"
)

// Where the driver's list of processes is read decides which PIDs it shows:
//
//	on the host            the host's PIDs
//	in a PID namespace     the PIDs of that namespace (driver 580), or the host's (older ones)
//
// Host PIDs mean nothing inside a PID namespace, and can be equal to a PID there by chance. So a
// process in a namespace compares PIDs only if the list can be of its own namespace, that is, if
// every PID of the list is a process there. Otherwise it compares amounts: what the driver counts
// for all processes of a device with what the jobs count.

// onHost is a variable for tests.
var onHost = region.OnHost

// driverPID returns the PID by which the driver lists a process here; 0 if it is unknown.
func (p *Process) driverPID() int { return cmp.Or(p.Local.PID, p.HostPID) }

// seesListed reports whether the PIDs of the driver's list are those that this process sees.
func seesListed(reported []gpu.Process) bool {
	return onHost() || !slices.ContainsFunc(reported, func(r gpu.Process) bool {
		_, err := os.Stat("/proc/" + strconv.Itoa(r.PID))
		return err != nil
	})
}

// addAmounts compares the driver's list with the jobs if its PIDs say nothing here. A process of the
// list is not counted as one of no job: it may be in a job. What the list has beyond all jobs is
// a finding.
func (m *Machine) addAmounts(reported []gpu.Process, allUsers bool) {
	if !allUsers {
		return // the list also has processes of jobs that this user does not see
	}
	listed, counted := map[int]uint64{}, map[int]uint64{} // by the machine's number of a device
	for _, r := range reported {
		listed[r.Device] += min(r.Used, ^listed[r.Device])
	}
	for i := range m.Jobs {
		for n := range m.Jobs[i].Devices {
			d := &m.Jobs[i].Devices[n]
			if at := m.DeviceOf(d); at >= 0 {
				device := m.Devices[at].Device
				counted[device] += min(d.Used, ^counted[device])
			}
		}
	}
	for i := range m.Devices {
		device := m.Devices[i].Device
		held := counted[device]
		if listed[device] <= held || listed[device]-held <= driftBound(held) {
			continue
		}
		m.Findings = append(m.Findings, Finding{Kind: OutsideJobs, Device: device,
			Text: fmt.Sprintf("processes hold %s of device %d beyond what the jobs here count; the driver lists them by PIDs of the host, so it cannot be told from here which these are",
				humanfmt.Bytes(listed[device]-held), device),
			Remedy: "run ration ps on the host"})
	}
}
