package cli

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ration/internal/abi"
	"ration/internal/agent"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/node"
	"ration/internal/policy"
	"ration/internal/termtext"
	"ration/machine"
)

// ShownLimits is what `ration limit --json` prints.
type ShownLimits struct {
	Job       string       `json:"job,omitempty"`           // empty for a region outside the folder of jobs
	Path      string       `json:"path"`                    // of the region
	Priority  string       `json:"priority,omitempty"`      // high or low; empty for normal
	WaitAlloc uint64       `json:"wait_alloc_ms,omitempty"` // milliseconds that a request waits for memory of the job at most; 0 if it does not wait
	Lent      bool         `json:"ration_lent,omitempty"`   // the job sleeps, and its ration is lent: the limits are 0 until it wakes
	Devices   []ShownLimit `json:"devices"`                 // devices with a limit and devices ever used; after a change, the changed ones
}

// ShownLimit is a job's limit on one device. Sizes are bytes.
type ShownLimit struct {
	machine.Device
	Changed bool   `json:"changed"`
	Before  uint64 `json:"before"` // the limit before the change; 0 for no limit
	Over    uint64 `json:"over"`   // bytes in use beyond the limit

	ShareBefore int `json:"share_before"` // the share before the change, in per cent; 0 for no share
	MaxBefore   int `json:"max_before"`   // the cap before the change, in per cent; 0 for no cap
	Unenforced  int `json:"unenforced"`   // processes that the share or the cap does not apply to, because they started when the job had neither on any device

	// Overbooked is by how much the limits of all jobs together exceed the device after the change,
	// as far as an agent sees the jobs.
	Overbooked uint64 `json:"overbooked"`
	booked     machine.GPU
}

// limitFlags are the flags of limits.
type limitFlags struct {
	mem, share, most string
	devices          string
	priority         string
	waitAlloc        string
	device           int // allDevices, or one device
	yes              bool
}

// allDevices is the value of --device if it was not given.
const allDevices = -1

func (f *limitFlags) addMemory(flags *pflag.FlagSet) {
	flags.StringVar(&f.mem, "mem", "", "`limits` on GPU memory: 10g, 25%, 0=10g,1=20g")
}

func (f *limitFlags) addCompute(flags *pflag.FlagSet) {
	flags.StringVar(&f.share, "compute", "", "`shares` of GPU time, at least: 30%, 0=30%,1=50%")
	flags.StringVar(&f.most, "compute-max", "", "`caps` on GPU time, at most: 50%, 0=50%,1=none")
}

func (f *limitFlags) addDevices(flags *pflag.FlagSet) {
	flags.StringVar(&f.devices, "devices", "", "`number` of GPUs that the job is on, the emptiest; it sees no others")
}

func (f *limitFlags) addPriority(flags *pflag.FlagSet) {
	flags.StringVar(&f.priority, "priority", "", "which jobs come first on a GPU: `high`, normal or low")
}

func (f *limitFlags) addWaitAlloc(flags *pflag.FlagSet) {
	flags.StringVar(&f.waitAlloc, "wait-alloc", "", "a request that does not fit waits for memory of the job, at most this `time`: 30s, none")
}

func (f *limitFlags) addDevice(flags *pflag.FlagSet) {
	flags.IntVarP(&f.device, "device", "d", allDevices, "only this device, by its number in ration ps")
	flags.Lookup("device").DefValue = "0" // hides the default, -1, from the help text
}

// parse returns the limits in the flags.
func (f *limitFlags) parse(flags *pflag.FlagSet) (l limit.Limits, err error) {
	if flags.Changed("mem") {
		l.Memory, err = limit.ParseMemorySet("--mem", f.mem)
	}
	if err == nil && flags.Changed("compute") {
		l.Compute, err = limit.ParseComputeSet("--compute", f.share)
	}
	if err == nil && flags.Changed("compute-max") {
		l.ComputeMax, err = limit.ParseComputeSet("--compute-max", f.most)
	}
	if err == nil && flags.Changed("devices") {
		l.Devices, err = limit.ParseDevices("--devices", f.devices)
	}
	if err == nil && flags.Changed("priority") {
		l.Priority, err = limit.ParsePriority("--priority", f.priority)
	}
	return l, err
}

// parseChange returns the change of limits that the flags and arguments describe. size is empty if
// none was given.
func (f *limitFlags) parseChange(flags *pflag.FlagSet, size []string) (l limit.Limits, err error) {
	if flags.Changed("device") && (f.device < 0 || f.device >= abi.Devices) {
		return l, usageError("--device %d: not a device (use 0 to %d)", f.device, abi.Devices-1)
	}
	if l, err = f.parse(flags); err != nil {
		return l, err
	}
	if len(size) > 0 {
		if l.Memory, err = limit.ParseMemorySet("", size[0]); err != nil {
			return l, err
		}
	}
	if f.device == allDevices {
		return l, nil
	}
	if l, err = l.On(f.device); err != nil {
		return l, usageError("--device %d: %w", f.device, err)
	}
	return l, nil
}

func newLimitCommand(a *app) *cobra.Command {
	var f limitFlags
	cmd := &cobra.Command{
		Use:        "limit JOB [SIZE]",
		SuggestFor: []string{"set", "update"},
		Short:      "Show or change a job's limits while it runs",
		Long: `Show a job's limits, or change them while it runs.

JOB is a name that ration ps shows, the path of a region, with a slash in it, or
for root USER/NAME, a job of another user.
SIZE is 10g, 10GiB, 1024m, plain bytes, or none. 25% of a device works once a
process of the job has used that device. A size is for all devices of the job,
for the one that --device names, or as listed: 0=10g,1=20g. Devices have the
numbers that ration ps shows, whichever of them a program sees as its first. A
device that the job is not for, as --mem of ration run left it out, stays closed
unless it is named.

A change applies to every request from then on. If the job holds more than its
new limit, it keeps that, and gets no more until it has freed enough. If the new
limit is less than half of what the job holds, or a job that sleeps cannot wake
with it, the command asks first, and without a terminal refuses; --yes answers
for you. If an agent runs (ration agent), the command warns if the limits of all
jobs together exceed a device.

--compute and --compute-max change the job's share of a device's time and its
cap, as in ration run; none removes one. They do not apply to a process that
was started when its job had neither, until that process is restarted.

--wait-alloc changes for how long a request that does not fit waits for memory
of the job; none ends the waiting. Requests that wait now follow it, too.

--priority changes which jobs come first on the devices that they share, as in
ration run. It does not apply to a process that was started when its job had no
share, no cap and normal priority, until that process is restarted.

The limits of a user's job under a policy are the policy's: root's change lasts
until the policy is applied again, or a run of that user begins or ends. Those
of a run (USER/NAME) are its part of the user's ration: root can change it while
the command runs, within what the user's other programs and runs leave.

An operator may keep limits in a file beside the region (PATH.limits). Only the
owner of that file can change them.

Exit status: 0; 1 if you may not change the limit; 2 for an impossible limit; 3
if there is no such job, or its region could not be opened.`,
		Example:           "  ration limit train\n  ration limit train 20g\n  ration limit train 25% --device 1\n  ration limit train 0=10g,1=none\n  ration limit train --compute 50% --compute-max none\n  ration limit train --priority low",
		Args:              argCount(1, 2, "a job and perhaps a size"),
		ValidArgsFunction: completeLimitArgs,
		RunE:              func(cmd *cobra.Command, args []string) error { return a.runLimit(cmd, f, args) },
	}
	f.addCompute(cmd.Flags())
	f.addPriority(cmd.Flags())
	f.addWaitAlloc(cmd.Flags())
	f.addDevice(cmd.Flags())
	cmd.Flags().BoolVarP(&f.yes, "yes", "y", false, "do not ask whether a limit far below what the job holds is meant")
	return cmd
}

func (a *app) runLimit(cmd *cobra.Command, f limitFlags, args []string) error {
	change, err := f.parseChange(cmd.Flags(), args[1:])
	if err != nil {
		return err
	}
	priority := change.Priority
	change.Priority = 0
	var wait limit.WaitAlloc
	if cmd.Flags().Changed("wait-alloc") {
		if wait, err = limit.ParseWaitAlloc("--wait-alloc", f.waitAlloc); err != nil {
			return err
		}
	}
	j, err := lookUpJob(args[0], job.Find)
	if err != nil {
		return err
	}
	name := nameOf(args[0], j)
	// The record of a run has a copy of its region, which limits nothing.
	if _, of := job.PolicyUser(job.InfoOf(j).Region); of && (priority != 0 || wait != 0 || change.IsSet()) {
		return statusError{fmt.Errorf("changing the limit of %s: it has ended", name), ExitFailed}
	}
	whole := wholeChange{priority, wait}
	if whole != (wholeChange{}) && f.device != allDevices {
		return usageError("--priority and --wait-alloc: they are the whole job's (use them without --device)")
	}
	if change.IsSet() {
		if err := a.confirmLimit(j, name, change, f.yes); err != nil {
			return err
		}
		return a.changeLimits(j, name, change, whole)
	}
	if whole != (wholeChange{}) {
		return a.changeWhole(j, name, whole)
	}
	s := readNamed(j, name, node.Options{})
	if s.Err() != nil {
		return statusError{s.Err(), ExitOpen}
	}
	return a.printLimits(s, f.device)
}

// readNamed reads a job that its caller knows by a name, as USER/NAME, and that is found by its path; "" for none.
func readNamed(j job.Job, name string, opts node.Options) machine.Job {
	s := node.ReadJob(j, opts)
	s.Name = cmp.Or(s.Name, name)
	return s
}

// confirmLimit asks if a new limit is less than half of what the job holds: a size with a wrong unit would end most programs.
// It asks as well if a job that sleeps could not wake with it.
func (a *app) confirmLimit(j job.Job, name string, change limit.Limits, yes bool) error {
	if yes || !change.Memory.IsSet() {
		return nil
	}
	s := readNamed(j, name, node.Options{ReadOnly: true})
	if _, is := job.PolicyUser(s.Path); is && os.Geteuid() != 0 {
		return nil // it is refused in any case
	}
	for _, d := range s.Devices {
		var held, aside uint64 // of living processes: a request that needs the memory of a dead one gets it
		for _, h := range livingOn(&s, d.Device) {
			held += min(h.Total, ^held)
			aside += min(h.Aside, ^aside)
		}
		size, err := change.Memory.For(d.Device).Of(limit.Size(d.Total))
		switch {
		case err != nil || size == 0 || limit.CheckLeast(size, "", "") != nil: // an impossible limit is refused later
			continue
		case d.Limited && uint64(size) >= d.Limit: // a job may claim to hold anything: raising its limit needs no question
			continue
		case uint64(size) >= held/2 && uint64(size) >= aside:
			continue
		}
		text := fmt.Sprintf("%s holds %s of device %d: with a limit of %s, its next request is refused, and most programs end then", s.Title(), humanfmt.Bytes(held), d.Device, humanfmt.Bytes(uint64(size)))
		if uint64(size) < aside {
			text = fmt.Sprintf("%s sleeps, with %s of device %d put aside: with a limit of %s, it cannot wake until the limit is raised", s.Title(), humanfmt.Bytes(aside), d.Device, humanfmt.Bytes(uint64(size)))
		}
		if _, err := windowSize(os.Stdin); err != nil || a.json {
			return usageError("%s (--yes sets it)", termtext.Printable(text))
		}
		a.err.printf("%s. Set it? [y/N] ", termtext.Printable(text))
		var answer string
		if _, _ = fmt.Fscanln(os.Stdin, &answer); answer != "y" && answer != "yes" {
			return statusError{errors.New("nothing was changed"), ExitFailed}
		}
		return nil
	}
	return nil
}

// setLimit changes a job's limits as ration limit does, and returns the output of that command.
func setLimit(j machine.Job, change limit.Limits) (string, error) {
	found, err := job.Find(j.Path)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	name := ""
	if j.Name != "" {
		name = node.ShownName(&j)
	}
	err = (&app{out: newTerminal(&out), err: newTerminal(&out)}).changeLimits(found, name, change, wholeChange{})
	return out.String(), err
}

// changeWhole changes what is not one device's, where it is given, and prints the job's limits.
func (a *app) changeWhole(j job.Job, name string, change wholeChange) error {
	s := readNamed(j, name, node.Options{})
	if err := change.apply(s); err != nil {
		return err
	}
	a.noteEnded(&s)
	return a.printLimits(readNamed(j, name, node.Options{}), allDevices)
}

// printWhole prints the priority and the time to wait of a job that has them.
func (a *app) printWhole(s machine.Job) {
	if s.Priority != "" {
		a.out.printf("%s: %s priority\n", termtext.Printable(s.Title()), s.Priority)
	}
	if s.WaitAlloc > 0 {
		a.out.printf("%s: requests wait for memory up to %s\n", termtext.Printable(s.Title()), humanfmt.Span(time.Duration(s.WaitAlloc)*time.Millisecond))
	}
}

// noteEnded says that a change limits no program, as the job has ended.
func (a *app) noteEnded(s *machine.Job) {
	if s.State == machine.Ended {
		a.warn(fmt.Sprintf("%s has ended: the change counts only for programs that are started in its region again (ration run makes a new job)", s.Title()))
	}
}

func (a *app) printLimits(s machine.Job, device int) error {
	out := ShownLimits{Job: s.Name, Path: s.Path, Priority: s.Priority, WaitAlloc: s.WaitAlloc, Lent: s.RationLent, Devices: []ShownLimit{}}
	for _, d := range s.Devices {
		if device == allDevices || d.Device == device {
			out.Devices = append(out.Devices, ShownLimit{Device: d, Over: overLimit(d)})
		}
	}
	return a.print(out, func() {
		a.printWhole(s)
		if len(out.Devices) == 0 {
			a.out.printf("%s: no limits, and nothing was ever used\n", termtext.Printable(s.Title()))
		}
		for _, d := range out.Devices {
			if device == allDevices && !node.IsOpen(&s, d.Device.Device) {
				continue
			}
			a.out.printf("%s, %s\n", a.out.style(bold, termtext.Printable(s.Title())), a.deviceLine(d.Device, s.RationLent))
			if d.Compute != nil {
				a.out.paragraph(plain, 2, "%s", d.Compute.Sentence())
			}
		}
	})
}

// changeLimits changes a job's limits, and prints those before and after.
func (a *app) changeLimits(j job.Job, name string, change limit.Limits, whole wholeChange) error {
	before := readNamed(j, name, node.Options{})
	c, err := applyLimits(before, change)
	if err != nil {
		return err
	}
	if whole != (wholeChange{}) {
		if err := whole.apply(before); err != nil {
			return fmt.Errorf("the limits of the devices are changed, and the rest is not: %w", err)
		}
	}
	s := readNamed(j, name, node.Options{})
	printError(a.err, s.Err()) // the change has been made
	a.noteEnded(&s)
	if uid, is := job.PolicyUser(s.Path); is && s.Path == job.OfUserPath(uid) {
		a.warn(fmt.Sprintf("the policy sets the limits of %s again, when it is applied or a run of that user begins or ends (a rule in %s lasts)", s.Title(), policy.ConfigFile))
	}
	now := byDevice(s)
	var booked map[int]machine.GPU
	if change.Memory.IsSet() {
		booked, err = agent.Booked(&s)
		a.noteSilent(err, "it is not known whether a device is overbooked now")
	}
	out := ShownLimits{Job: s.Name, Path: s.Path, Priority: s.Priority, WaitAlloc: s.WaitAlloc, Devices: []ShownLimit{}}
	for _, d := range c.devices {
		if _, shown := now[d]; !shown {
			now[d] = c.after[d]
		}
		l := ShownLimit{Device: now[d], Changed: true, Before: c.before[d].Limit, Over: overLimit(now[d])}
		l.Device.Device = d // also if no limit is left
		if was := c.before[d].Compute; was != nil {
			l.ShareBefore, l.MaxBefore = was.Share, was.Max
		}
		if change.Compute.For(d).IsSet() || change.ComputeMax.For(d).IsSet() {
			l.Unenforced = notHeld(&s, d)
		}
		if g, known := booked[d]; known && g.Rations > g.Total && now[d].Limited {
			l.Overbooked, l.booked = g.Rations-g.Total, g
		}
		out.Devices = append(out.Devices, l)
	}
	return a.print(out, func() {
		if whole != (wholeChange{}) {
			a.printWhole(s)
		}
		text := func(d ShownLimit, devices string) string {
			var out strings.Builder
			to := *a
			to.out.Writer = &out
			to.printChange(s.Title(), devices, change, d, c.before[d.Device.Device])
			return out.String()
		}
		for all := out.Devices; len(all) > 0; { // devices with the same change share a line
			first, n := all[0], 1
			for n < len(all) && all[n].Device.Device == first.Device.Device+n && text(all[n], "") == text(first, "") {
				n++
			}
			devices := fmt.Sprintf("device %d", first.Device.Device)
			if n > 1 {
				devices = fmt.Sprintf("devices %d-%d", first.Device.Device, first.Device.Device+n-1)
			}
			a.out.printf("%s", text(first, devices))
			all = all[n:]
		}
	})
}

func (a *app) printChange(title, devices string, change limit.Limits, d ShownLimit, was machine.Device) {
	device := d.Device.Device
	line := func(what, now, before string) {
		a.out.printf("%s, %s: the %s is %s now; it was %s.\n", a.out.style(bold, termtext.Printable(title)), devices, what, now, before)
	}
	note := func(format string, args ...any) { a.out.paragraph(plain, 2, format, args...) }
	if change.Memory.For(device).IsSet() {
		line("limit", limitText(d.Device), limitText(was))
		if d.Over > 0 {
			note("%s are held. Nothing is taken away; requests are refused until %s were returned.", humanfmt.Bytes(d.Used), humanfmt.Bytes(d.Over))
		}
	}
	if g := d.booked; d.Overbooked > 0 {
		note("The device is overbooked: %s %s of its %s, and may find none left within that.",
			humanfmt.Plural(g.Jobs, "job has", "jobs together have"), humanfmt.Bytes(g.Rations), humanfmt.Bytes(g.Total))
	}
	share, most := 0, 0
	if d.Compute != nil {
		share, most = d.Compute.Share, d.Compute.Max
	}
	if change.Compute.For(device).IsSet() {
		line("share of its time", percentText(share), percentText(d.ShareBefore))
	}
	if change.ComputeMax.For(device).IsSet() {
		line("cap on its time", percentText(most), percentText(d.MaxBefore))
	}
	if d.Unenforced > 0 {
		note("%s began when the job had neither: not enforced there until restarted.", humanfmt.Plural(d.Unenforced, "process", "processes"))
	}
}

// notHeld counts the living processes on a device that the job's share or cap of it does not apply
// to.
func notHeld(s *machine.Job, device int) (n int) {
	for _, h := range livingOn(s, device) {
		if h.Compute != nil && !h.Compute.Held {
			n++
		}
	}
	return n
}

func percentText(percent int) string {
	if percent == 0 {
		return "none"
	}
	return fmt.Sprintf("%d %%", percent)
}

// limitText formats a limit.
func limitText(d machine.Device) string {
	if !d.Limited {
		return "none"
	}
	return limit.Size(d.Limit).String()
}

// overLimit returns the bytes in use beyond the limit.
func overLimit(d machine.Device) uint64 {
	if !d.Limited || d.Used <= d.Limit {
		return 0
	}
	return d.Used - d.Limit
}
