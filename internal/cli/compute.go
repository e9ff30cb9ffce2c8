package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ration/internal/abi"
	"ration/internal/humanfmt"
	"ration/internal/limit"
	"ration/internal/termtext"
	"ration/machine"
)

const computeFlag, computeMaxFlag = "--compute", "--compute-max"

// computeFlags are the flags of shares and caps.
type computeFlags struct{ share, most string }

func (f *computeFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.share, "compute", "", "`shares` of GPU time, at least: 30%, 0=30%,1=50%")
	flags.StringVar(&f.most, "compute-max", "", "`caps` on GPU time, at most: 50%, 0=50%,1=none")
}

// parse returns the shares and caps that were given.
func (f *computeFlags) parse(cmd *cobra.Command) (share, most limit.Set[limit.Compute], err error) {
	if cmd.Flags().Changed("compute") {
		if share, err = limit.ParseComputeSet(computeFlag, f.share); err != nil {
			return share, most, err
		}
	}
	if cmd.Flags().Changed("compute-max") {
		most, err = limit.ParseComputeSet(computeMaxFlag, f.most)
	}
	return share, most, err
}

// checkCompute returns an error for a share that a cap does not allow.
func checkCompute(share, most limit.Set[limit.Compute]) error {
	for d := range abi.Devices {
		if s, m := share.For(d).Percent(), most.For(d).Percent(); m != 0 && s > m {
			return neverGetsShare(d, s, m)
		}
	}
	return nil
}

func neverGetsShare(device, share, most int) error {
	return usageError("device %d: a share of %d%% and a cap of %d%%: it would never get its share (use a cap of %d%% or more)", device, share, most, share)
}

// sliceText renders the time slice of a process, or that its share is not enforced.
func sliceText(c *machine.ProcessCompute) string {
	switch {
	case c == nil, c.State == "":
		return "-"
	case c.State != machine.Kept:
		return c.State
	}
	return strings.ReplaceAll(humanfmt.Span(time.Duration(c.Slice)*time.Microsecond), " ", "")
}

// spanText renders nanoseconds for a column.
func spanText(ns uint64) string { return strings.ReplaceAll(humanfmt.Span(time.Duration(ns)), " ", "") }

// timeText renders a share of a device's time for a column; ~ marks one that is not exact.
func timeText(t *machine.Time) string {
	if t == nil {
		return "-"
	}
	about := ""
	if t.About {
		about = "~"
	}
	return fmt.Sprintf("%s%.0f%%", about, t.Percent)
}

// has returns what a row has of its device's time, never nil.
func (r processRow) has() *machine.ProcessCompute {
	if r.Compute == nil {
		return &machine.ProcessCompute{}
	}
	return r.Compute
}

var computeColumns = []column[processRow]{
	{"SLICE", true, func(r processRow) string { return sliceText(r.Compute) }, func(r processRow) bool { return r.has().State != "" }},
	{"WORK", true, func(r processRow) string { return fmt.Sprint(r.has().Working) }, func(r processRow) bool { return r.Compute != nil }},
	{"TIME", true, func(r processRow) string { return timeText(r.Time) }, func(r processRow) bool { return r.Time != nil }},
	{"USED", true, func(r processRow) string { return spanText(r.has().Used) }, func(r processRow) bool { return r.has().Used > 0 }},
	{"WAITED", true, func(r processRow) string { return spanText(r.has().Waited) }, func(r processRow) bool { return r.has().Waited > 0 }},
}

// notEnforced says in sentences whose shares are not enforced, and why.
func notEnforced(s machine.Job) (out []string) {
	type where struct {
		device int
		reason string
	}
	var order []where
	pids := map[where][]string{}
	for _, p := range s.Processes {
		for _, h := range p.Holdings {
			if h.Compute == nil || h.Compute.State != machine.NotEnforced || p.State == machine.Dead {
				continue
			}
			at := where{h.Device, h.Compute.Reason}
			if pids[at] == nil {
				order = append(order, at)
			}
			pids[at] = append(pids[at], fmt.Sprint(p.PID))
		}
	}
	for _, at := range order {
		list := "pid " + pids[at][0]
		if n := len(pids[at]); n > 1 {
			list = "pids " + strings.Join(pids[at][:min(n, 4)], ", ")
			if n > 4 {
				list += fmt.Sprintf(" and %d more", n-4)
			}
		}
		out = append(out, termtext.Printable(fmt.Sprintf("device %d: the share of %s is not enforced: %s", at.device, list, at.reason)))
	}
	return out
}
