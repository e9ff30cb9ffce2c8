package tui

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"ration/internal/humanfmt"
	"ration/machine"
)

// computeText renders a job's share of a device and its cap, or that the share is not
// enforced in some process of it.
func (m *Model) computeText(s *machine.Job, d machine.Device) string {
	if unenforced(s, d) {
		return machine.NotEnforced
	}
	return strings.ReplaceAll(d.Compute.Short(), "≤", m.theme.atMost)
}

// unenforced reports whether a job has a share of a device that some process of it does
// not have.
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

// sliceText renders a process's time slice, or that its share is not enforced.
func sliceText(c *machine.ProcessCompute) string {
	if c.State != machine.Kept {
		return c.State
	}
	return shortTime(c.Slice * uint64(time.Microsecond))
}

// timeText renders how much of a device's time a process had lately.
func (m *Model) timeText(t *machine.Time) string {
	if t == nil {
		return ""
	}
	about := ""
	if t.About {
		about = m.theme.about
	}
	return fmt.Sprintf("%s%.0f%%", about, t.Percent)
}

// shortTime renders nanoseconds for a column.
func shortTime(ns uint64) string {
	return strings.ReplaceAll(humanfmt.Span(time.Duration(ns)), " ", "")
}

// jobTime renders how much of a device's time the processes of a job had lately, together.
func (m *Model) jobTime(j *machine.Job, device int) string {
	t := machine.Time{Percent: timeOn(j, device)}
	if t.Percent < 0 {
		return ""
	}
	t.About = anyHolding(j, func(_ machine.Process, h machine.Holding) bool {
		return h.Device == device && h.Time != nil && h.Time.About
	})
	return m.timeText(&t)
}
