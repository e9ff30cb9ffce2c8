package node

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"
	"syscall"
	"time"

	"ration/internal/humanfmt"
	"ration/machine"
)

// Tree returns the processes in order, each after its parent, with its depth in the tree.
func Tree(all []machine.Process) iter.Seq2[machine.Process, int] {
	children := map[int][]machine.Process{} // by the parent's host PID
	listed := map[int]bool{}
	for _, p := range all {
		listed[p.HostPID] = p.HostPID != 0
	}
	for _, p := range all {
		parent := p.Parent
		if !listed[parent] || parent == p.HostPID {
			parent = 0
		}
		children[parent] = append(children[parent], p)
	}
	return func(yield func(machine.Process, int) bool) {
		var walk func(parent, depth int) bool
		walk = func(parent, depth int) bool {
			below := children[parent]
			delete(children, parent) // ends a circle of parents, which the kernel never reports
			for _, p := range below {
				if !yield(p, depth) || p.HostPID != 0 && !walk(p.HostPID, depth+1) {
					return false
				}
			}
			return true
		}
		for walk(0, 0) && len(children) > 0 {
			for parent := range children {
				children[0] = append(children[0], children[parent]...)
				delete(children, parent)
				break
			}
		}
	}
}

// DeviceRange is a device of a job, or several devices that differ only in their numbers.
type DeviceRange struct {
	machine.Device
	Last int // number of the last device
}

// String returns the numbers, as in 0 or 0-15; "any" for a device that is not chosen yet.
func (r DeviceRange) String() string {
	if r.Device.Device < 0 {
		return "any"
	}
	if r.Last > r.Device.Device {
		return fmt.Sprintf("%d-%d", r.Device.Device, r.Last)
	}
	return fmt.Sprint(r.Device.Device)
}

// Unused reports whether no process ever requested memory of it.
func (r DeviceRange) Unused() bool { return unused(r.Device) }

func unused(d machine.Device) bool {
	return d.Used == 0 && d.Peak == 0 && d.Refused == 0 && d.Driver == 0
}

// DeviceRanges returns the devices that exist, were used, or have a limit. It joins unused devices
// with equal limits into one range. A limit for all devices is one range until a process has found
// out which devices exist, and later most jobs use few of a machine's devices.
func DeviceRanges(devices []machine.Device) (out []DeviceRange) {
	for i := 0; i < len(devices); i++ {
		d := devices[i]
		if unused(d) && d.Total == 0 && !d.Limited && d.Compute == nil {
			continue
		}
		last := i
		for unused(d) && last+1 < len(devices) && sameLimits(devices[last+1], d) && devices[last+1].Device == devices[last].Device+1 {
			last++
		}
		out = append(out, DeviceRange{d, devices[last].Device})
		i = last
	}
	return out
}

// OpenRanges returns the DeviceRanges that a person wants to see of a job: without the devices that its limit of nothing keeps it
// off, and of which it has had nothing. If that would leave none, or the job's ration is lent, it returns all.
func OpenRanges(j *machine.Job) []DeviceRange {
	all := DeviceRanges(j.Devices)
	open := slices.DeleteFunc(slices.Clone(all), func(r DeviceRange) bool { return r.Limited && r.Limit == 0 && r.Unused() })
	if len(open) == 0 || j.RationLent {
		return all
	}
	return open
}

// IsOpen reports whether OpenRanges has a device of a job.
func IsOpen(j *machine.Job, device int) bool {
	return slices.ContainsFunc(OpenRanges(j), func(r DeviceRange) bool { return r.Device.Device <= device && device <= r.Last })
}

// sameLimits reports whether two devices differ only in number and UUID.
func sameLimits(a, b machine.Device) bool {
	same := a.Compute == nil && b.Compute == nil || a.Compute != nil && b.Compute != nil && *a.Compute == *b.Compute
	a.Device, a.UUID, a.Compute, b.Compute = b.Device, b.UUID, nil, nil
	return same && a == b
}

// StateWords returns whether a job sleeps, and whether its ration is lent, or otherwise its state.
func StateWords(j *machine.Job) string {
	if j.RationLent {
		return j.Sleep + ", ration lent"
	}
	return StateWord(j)
}

// StateWord returns a job's state as people know it: whether it sleeps, or is stopped, comes before that it runs.
func StateWord(j *machine.Job) string {
	stopped := 0
	for i := range j.Processes {
		if j.Processes[i].State == machine.Stopped {
			stopped++
		}
	}
	if j.State == machine.Running && j.Sleep == "" && stopped > 0 && stopped == j.LivingCount() {
		return machine.Stopped
	}
	return cmp.Or(j.Sleep, j.State)
}

// StateText formats a job's state, as in "running 3m" or "ended 5m ago with exit status 1".
func StateText(s machine.Job, now time.Time) string {
	text := StateWords(&s)
	if !s.IdleSince.IsZero() {
		text += " for " + Ago(now.Sub(s.IdleSince))
		if s.IdleAbout {
			text += ", by the driver's samples"
		}
		return text
	}
	if s.State != machine.Ended {
		if !s.Started.IsZero() && text != s.State {
			text += ", started " + Ago(now.Sub(s.Started)) + " ago"
		} else if !s.Started.IsZero() {
			text += " " + Ago(now.Sub(s.Started))
		}
		return text
	}
	if !s.Ended.IsZero() {
		text += " " + Ago(now.Sub(s.Ended)) + " ago"
	} else if !s.CommandEnded.IsZero() {
		text += ", its command " + Ago(now.Sub(s.CommandEnded)) + " ago"
	}
	if s.Exit != nil && s.Exit.Signal != 0 {
		text += fmt.Sprintf(" by signal %d (%v)", s.Exit.Signal, syscall.Signal(s.Exit.Signal))
	} else if s.Exit != nil {
		text += fmt.Sprintf(" with exit status %d", s.Exit.Status)
	} else if s.NoExit {
		text += ", ration run was killed"
	}
	return text
}

// SleepText says what is known of a job's sleep: what it has put aside, when it falls asleep by itself, or why it cannot. It is empty
// for a job that does not sleep by itself.
func SleepText(j *machine.Job, now time.Time) string {
	after := time.Duration(j.SleepAfter) * time.Millisecond
	switch {
	case j.Sleep == machine.Asleep:
		text := humanfmt.Bytes(j.Aside()) + " of GPU memory is in host memory"
		if j.RationLent {
			return text + "; its ration is lent to others, and it wakes when there is room for it"
		}
		for i := range j.Devices {
			// With runs that have the whole ration, the limit is 0.
			if d := &j.Devices[i]; d.Limited && d.Limit > 0 && d.Aside > d.Limit {
				text += fmt.Sprintf("; it cannot wake with a limit of %s on device %d, where it had %s", humanfmt.Bytes(d.Limit), d.Device, humanfmt.Bytes(d.Aside))
			}
		}
		return text
	case j.Sleep != "":
		return ""
	case j.CannotSleep != "":
		return "should sleep, and cannot: " + strings.TrimPrefix(j.CannotSleep, "it cannot sleep: ")
	case after == 0:
		return ""
	case WorkUnknown(j):
		return fmt.Sprintf("should sleep after %s without work on the GPU, and does not: %s", humanfmt.Span(after), UnknownText)
	case j.UnusedSince.IsZero():
		return fmt.Sprintf("sleeps after %s without work on the GPU", humanfmt.Span(after))
	}
	return fmt.Sprintf("sleeps after %s without work on the GPU; none for %s so far", humanfmt.Span(after), humanfmt.Span(max(0, now.Sub(j.UnusedSince)).Round(time.Second)))
}

// Ago formats a duration in one unit.
func Ago(d time.Duration) string {
	switch d = max(0, d); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

// ShortTime formats nanoseconds for a column.
func ShortTime(ns uint64) string {
	return strings.ReplaceAll(humanfmt.Span(time.Duration(ns)), " ", "")
}

// SliceText formats the time slice of a process for a column, or says that its share is not
// enforced. It is empty if the process has neither.
func SliceText(c *machine.ProcessCompute) string {
	switch {
	case c == nil:
		return ""
	case c.State != machine.Kept:
		return c.State
	}
	return ShortTime(c.Slice * uint64(time.Microsecond))
}

// TimeText formats a share of a device's time for a column, with a ~ if it is not exact. It is
// empty if the share is unknown.
func TimeText(t *machine.Time) string {
	switch {
	case t == nil:
		return ""
	case t.About:
		return fmt.Sprintf("~%.0f%%", t.Percent)
	}
	return fmt.Sprintf("%.0f%%", t.Percent)
}
