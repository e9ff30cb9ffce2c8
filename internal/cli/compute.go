package cli

import (
	"cmp"
	"fmt"
	"iter"
	"strings"
	"time"

	"ration/internal/abi"
	"ration/internal/humanfmt"
	"ration/internal/limit"
	"ration/internal/node"
	"ration/machine"
)

// checkCompute returns an error if a share exceeds the cap.
func checkCompute(l limit.Limits) error {
	for d := range abi.Devices {
		if s, m := l.Compute.For(d).Percent(), l.ComputeMax.For(d).Percent(); m != 0 && s > m {
			return neverGetsShare(d, s, m)
		}
	}
	return nil
}

func neverGetsShare(device, share, most int) error {
	return usageError("device %d: a share of %d%% and a cap of %d%%: it would never get its share (use a cap of %d%% or more)", device, share, most, share)
}

// has returns the row's part of its device's time. It is never nil.
func (r processRow) has() *machine.ProcessCompute {
	if r.Compute == nil {
		return &machine.ProcessCompute{}
	}
	return r.Compute
}

var computeColumns = []column[processRow]{
	{"SLICE", true, func(r processRow) string { return cmp.Or(node.SliceText(r.Compute), "-") }, func(r processRow) bool { return r.has().State != "" }},
	{"WORK", true, func(r processRow) string { return fmt.Sprint(r.has().Working) }, func(r processRow) bool { return r.Compute != nil }},
	{"TIME", true, func(r processRow) string { return cmp.Or(node.TimeText(r.Time), "-") }, func(r processRow) bool { return r.Time != nil }},
	{"USED", true, func(r processRow) string { return node.ShortTime(r.has().Used) }, func(r processRow) bool { return r.has().Used > 0 }},
	{"WAITED", true, func(r processRow) string { return node.ShortTime(r.has().Waited) }, func(r processRow) bool { return r.has().Waited > 0 }},
}

// livingOn returns the living processes of a job on a device, with their holdings.
func livingOn(s *machine.Job, device int) iter.Seq2[machine.Process, machine.Holding] {
	return func(yield func(machine.Process, machine.Holding) bool) {
		for _, p := range s.Processes {
			for _, h := range p.Holdings {
				if h.Device == device && p.State != machine.Dead && !yield(p, h) {
					return
				}
			}
		}
	}
}

// notEnforced lists in sentences the processes in which a share or a cap of a device is not enforced, and
// why.
func notEnforced(s machine.Job, d machine.Device) (out []string) {
	var reasons []string
	pids := map[string][]string{}
	for p, h := range livingOn(&s, d.Device) {
		reason := ""
		switch c := h.Compute; {
		case c == nil:
		case c.State == machine.NotEnforced:
			reason = c.Reason
		case d.Compute != nil && d.Compute.Share == 0 && d.Compute.Max != 0 && h.Context > 0 && !c.Held:
			reason = "it started before the job had a cap (restart it)"
		}
		if reason == "" {
			continue
		}
		if pids[reason] == nil {
			reasons = append(reasons, reason)
		}
		pids[reason] = append(pids[reason], fmt.Sprint(p.PID))
	}
	for _, reason := range reasons {
		list := pids[reason]
		text := "pid " + list[0]
		if n := len(list); n > 1 {
			text = "pids " + strings.Join(list[:min(n, 4)], ", ")
			if n > 4 {
				text += fmt.Sprintf(" and %d more", n-4)
			}
		}
		out = append(out, fmt.Sprintf("not enforced in %s: %s", text, reason))
	}
	return out
}

// printNotEnforced prints where a share or a cap of a job is not enforced.
func (a *app) printNotEnforced(s machine.Job) {
	for _, d := range s.Devices {
		what := "share"
		if d.Compute != nil && d.Compute.Share == 0 {
			what = "cap"
		}
		for _, text := range notEnforced(s, d) {
			a.out.paragraph(bold, 2, "device %d: its %s is %s", d.Device, what, text)
		}
	}
}

// whyCompute explains a job's shares and caps.
func whyCompute(s machine.Job) (out []WhyCompute) {
	for _, d := range s.Devices {
		c := d.Compute
		if c == nil {
			continue
		}
		var parts []string
		if c.Share != 0 {
			parts = append(parts, shareSentence(&s, d))
		}
		if c.Max != 0 {
			parts = append(parts, fmt.Sprintf("cap %d %%: it used %s of the device's time, and its launches waited %s for it, over all threads",
				c.Max, humanfmt.Span(time.Duration(c.Used)), humanfmt.Span(time.Duration(c.Waited))))
		}
		parts = append(parts, notEnforced(s, d)...)
		out = append(out, WhyCompute{node.ShownName(&s), s.Name, s.Path, d.Device, *c, strings.Join(parts, "; ")})
	}
	return out
}

// shareSentence explains how a share leads to the time slice in force.
func shareSentence(s *machine.Job, d machine.Device) string {
	working, all := 0, 0
	var slice uint64
	for _, h := range livingOn(s, d.Device) {
		if h.Compute == nil {
			continue
		}
		all++
		if h.Compute.Working > 0 {
			working++
		}
		if h.Compute.State == machine.Kept && (h.Compute.Working > 0 || slice == 0) {
			slice = h.Compute.Slice
		}
	}
	text := fmt.Sprintf("share %d %%", d.Compute.Share)
	round := humanfmt.Span(time.Duration(d.Compute.Round) * time.Microsecond)
	switch {
	case all == 0:
		return text + fmt.Sprintf(" of a round of %s: no process uses the device", round)
	case slice == 0:
		text += fmt.Sprintf(" of a round of %s: no slice is in force", round)
	default:
		text += fmt.Sprintf(": slice %s of a round of %s", humanfmt.Span(time.Duration(slice)*time.Microsecond), round)
	}
	verb := "have"
	if working == 1 {
		verb = "has"
	}
	text += fmt.Sprintf(", %d of %s %s work", working, humanfmt.Plural(all, "process", "processes"), verb)
	if n := d.Compute.Working; n > working {
		text += fmt.Sprintf(" in %d contexts, which divide it", n)
	}
	return text
}
