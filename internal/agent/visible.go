package agent

import (
	"slices"

	"ration/internal/job"
	"ration/machine"
)

// Visible returns the part of a machine that a user may see: the user's own jobs in full, and only
// totals of the others on each device. Root and the agent's own user see everything.
func Visible(m *machine.Machine, uid int, all bool) *machine.Machine {
	out, _ := visible(m, uid, all)
	return out
}

// visible is Visible, and also returns the indices of the jobs that are kept.
func visible(m *machine.Machine, uid int, all bool) (seen *machine.Machine, which []int) {
	if all {
		for i := range m.Jobs {
			which = append(which, i)
		}
		return m, which
	}
	out := machine.Machine{Devices: m.Devices, Jobs: []machine.Job{}, Outside: []machine.Outside{}, Findings: []machine.Finding{}}
	if uid < 0 { // an unknown user, which must not match a job whose owner is unknown
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
	for _, d := range m.Denied {
		if d.UID == uid {
			out.Denied = append(out.Denied, d)
		}
	}
	for _, w := range m.Waiting {
		if w.UID == uid {
			out.Waiting = append(out.Waiting, w)
		}
	}
	for _, f := range m.Findings {
		// Keep findings of a device, which have only numbers, and findings of the user's own jobs
		// and processes.
		if f.Kind == machine.Overbooked || f.Kind == machine.PolicyDown || f.Path != "" && own[f.Path] || f.Kind == machine.OutsideJobs && hasPID(out.Outside, f.PID) {
			if f.Kind == machine.Overbooked && policyInForce() {
				f.Remedy = "a program may find the GPU full before its limit: let it use less, or ask root to lower a limit"
			}
			out.Findings = append(out.Findings, f)
		}
	}
	return &out, which
}

// policyInForce is a variable for tests.
var policyInForce = job.PolicyInForce

// Public returns the data that every user may see: the devices, and findings without a name that a
// user chose.
func Public(m *machine.Machine) *machine.Machine {
	out := Visible(m, -1, false)
	for _, f := range m.Findings {
		if f.Kind == machine.Overbooked || f.Kind == machine.DriverSilent || f.Kind == machine.DeviceFailed || f.Kind == machine.PolicyDown {
			out.Findings = append(out.Findings, f)
		}
	}
	return out
}

func hasPID(all []machine.Outside, pid int) bool {
	return slices.ContainsFunc(all, func(o machine.Outside) bool { return o.PID == pid })
}
