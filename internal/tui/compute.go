package tui

import (
	"slices"
	"strings"

	"ration/internal/node"
	"ration/machine"
)

// computeText formats a job's share of a device and its cap, or says that the share is not enforced
// in one of its processes.
func (m *Model) computeText(s *machine.Job, d machine.Device) string {
	if unenforced(s, d) {
		return machine.NotEnforced
	}
	return strings.ReplaceAll(d.Compute.Short(), "≤", m.theme.atMost)
}

// unenforced reports whether a job's share of a device is not enforced in one of its processes.
func unenforced(s *machine.Job, d machine.Device) bool {
	return anyHolding(s, func(p machine.Process, h machine.Holding) bool {
		return p.State != machine.Dead && h.Device == d.Device && h.Compute != nil && h.Compute.State == machine.NotEnforced
	})
}

func anyHolding(j *machine.Job, is func(p machine.Process, h machine.Holding) bool) bool {
	return slices.ContainsFunc(j.Processes, func(p machine.Process) bool {
		return slices.ContainsFunc(p.Holdings, func(h machine.Holding) bool { return is(p, h) })
	})
}

// jobTime formats how much of a device's time all processes of a job together had lately.
func jobTime(j *machine.Job, device int) string {
	t := machine.Time{Percent: node.TimeOn(j, device)}
	if t.Percent < 0 {
		return ""
	}
	t.About = anyHolding(j, func(_ machine.Process, h machine.Holding) bool {
		return h.Device == device && h.Time != nil && h.Time.About
	})
	return node.TimeText(&t)
}
