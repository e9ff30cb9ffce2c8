package agent

import (
	"slices"

	"ration/machine"
)

// Visible returns what a user may see of a machine: its own jobs in full, and of the others only their totals
// on each device. Root and the agent's own user see all.
func Visible(m *machine.Machine, uid int, all bool) *machine.Machine {
	out, _ := visible(m, uid, all)
	return out
}

// visible is Visible, and returns the indices of the jobs that are seen.
func visible(m *machine.Machine, uid int, all bool) (seen *machine.Machine, which []int) {
	if all {
		for i := range m.Jobs {
			which = append(which, i)
		}
		return m, which
	}
	out := machine.Machine{Devices: m.Devices, Jobs: []machine.Job{}, Outside: []machine.Outside{}, Findings: []machine.Finding{}}
	if uid < 0 { // an unknown client, which must not match a job of unknown owner
		return &out, nil
	}
	own := map[string]bool{}
	for i := range m.Jobs {
		if m.Jobs[i].UID == uid {
			out.Jobs = append(out.Jobs, m.Jobs[i])
			which = append(which, i)
			own[m.Jobs[i].Path] = true
		}
	}
	for _, o := range m.Outside {
		if o.UID == uid {
			out.Outside = append(out.Outside, o)
		}
	}
	for _, f := range m.Findings {
		// Findings of a device, with numbers only, and those of the user's own jobs and processes.
		if f.Kind == machine.Overbooked || f.Path != "" && own[f.Path] || f.Kind == machine.OutsideJobs && hasPID(out.Outside, f.PID) {
			out.Findings = append(out.Findings, f)
		}
	}
	return &out, which
}

// Public returns what everybody may know: the devices, and findings without a name that a user chose.
func Public(m *machine.Machine) *machine.Machine {
	out := Visible(m, -1, false)
	for _, f := range m.Findings {
		if f.Kind == machine.Overbooked || f.Kind == machine.DriverSilent {
			out.Findings = append(out.Findings, f)
		}
	}
	return out
}

func hasPID(all []machine.Outside, pid int) bool {
	return slices.ContainsFunc(all, func(o machine.Outside) bool { return o.PID == pid })
}
