package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"ration/internal/abi"
	"ration/internal/agent"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/limit"
	"ration/internal/reap"
	"ration/internal/region"
	"ration/internal/termtext"
	"ration/machine"
)

// Limits is what `ration limit --json` prints.
type Limits struct {
	Job     string  `json:"job,omitempty"` // empty for a region outside the folder of jobs
	Path    string  `json:"path"`          // of the region
	Devices []Limit `json:"devices"`       // those with a limit and those ever used; after a change, those changed
}

// Limit is a job's limit on one device. Sizes are bytes.
type Limit struct {
	machine.Device
	Changed bool   `json:"changed"`
	Before  uint64 `json:"before"` // the limit before the change; 0 for none
	Over    uint64 `json:"over"`   // usage beyond what may be granted

	ShareBefore int `json:"share_before"` // the share before the change, in per cent; 0 for none
	MaxBefore   int `json:"max_before"`   // the cap before the change, in per cent; 0 for none
	Unenforced  int `json:"unenforced"`   // processes that are not held to the share or the cap: they began when the job had neither, of any device

	// Overbooked is by how much the limits of all jobs of the machine together exceed the device, after
	// the change, as far as an agent sees them.
	Overbooked uint64 `json:"overbooked"`
	booked     machine.GPU
}

// limitChange is what is to be changed, of which devices.
type limitChange struct {
	memory     limit.Set[limit.Memory]
	share, cap limit.Set[limit.Compute]
	device     int // allDevices, or the one that --device names
}

// allDevices is --device where it was not given.
const allDevices = -1

func newLimitCommand(a *app) *cobra.Command {
	var device int
	var compute computeFlags
	cmd := &cobra.Command{
		Use:        "limit JOB [SIZE]",
		SuggestFor: []string{"set", "update"},
		Short:      "Show or change a job's limits while it runs",
		Long: `Show a job's limits, or change them while it runs.

JOB is a name that ration ps shows, the path of a region, with a slash in it, or
for root USER/NAME, a job of another user.
SIZE is 10g, 10GiB, 1024m, plain bytes, or none. 25% of a device works once a
process of the job has used that device. A size is for all devices of the job,
for the one that --device names, or as listed: 0=10g,1=20g.

A change holds for every request from then on. If the job holds more than its
new limit, nothing is taken from it. It gets nothing more until enough was
freed. Where an agent runs (ration agent), the
command says if all jobs of the machine together may then have more than there
is of a device.

--compute and --compute-max change the job's share of a device's time and its
cap, as in ration run; none ends one. A process that was started when its job
had neither is not held to them until it is started again.

An operator may keep limits in a file beside the region (PATH.limits). Only the
owner of that file can change them.

Exit status: 0; 1 if you may not change the limit; 2 for a limit that cannot be;
3 if there is no such job, or its region could not be opened.`,
		Example:           "  ration limit train\n  ration limit train 20g\n  ration limit train 25% --device 1\n  ration limit train 0=10g,1=none\n  ration limit train --compute 50% --compute-max none",
		Args:              argCount(1, 2, "a job and perhaps a size"),
		ValidArgsFunction: completeLimitArgs,
		RunE:              withStatus(func(cmd *cobra.Command, args []string) error { return a.runLimit(cmd, device, compute, args) }),
	}
	compute.add(cmd.Flags())
	cmd.Flags().IntVarP(&device, "device", "d", allDevices, "only this device, counted from 0 as the job sees them")
	cmd.Flags().Lookup("device").DefValue = "0" // which help leaves out: -1 would say nothing
	return cmd
}

func (a *app) runLimit(cmd *cobra.Command, device int, compute computeFlags, args []string) (err error) {
	if cmd.Flags().Changed("device") && (device < 0 || device >= abi.Devices) {
		return usageError("--device %d: not a device (use 0 to %d)", device, abi.Devices-1)
	}
	change := limitChange{device: device}
	if change.share, change.cap, err = compute.parse(cmd); err != nil {
		return err
	}
	if len(args) > 1 {
		if change.memory, err = limit.ParseMemorySet("", args[1]); err != nil {
			return err
		}
	}
	j, err := lookUpJob(args[0], job.Find)
	if err != nil {
		return err
	}
	s := reap.ReadJob(j, reap.Options{})
	page, err := openLimits(s)
	if err != nil {
		return statusError{err, ExitOpen}
	}
	defer page.close()
	if !change.memory.IsSet() && !change.share.IsSet() && !change.cap.IsSet() {
		if s.Err() != nil {
			return statusError{s.Err(), ExitOpen}
		}
		return a.printLimits(s, device)
	}
	return a.changeLimits(j, s, page, change)
}

// limitPage is where a job's limits are: its region, or an operator's file beside it.
type limitPage interface {
	Limit(device int) (abi.Limit, error)
	Total(device int) (uint64, error)
	Compute(device int) (region.Compute, error)
	SetLimit(device int, limit abi.Limit) error
	SetCompute(device int, share uint64) error
	SetComputeMax(device int, most uint64) error
}

// openedLimits is a limitPage, and what is known of its job without its region.
type openedLimits struct {
	limitPage
	operator bool // the limits are an operator's
	close    func()
}

// openLimits opens a job's limits. An operator's do not depend on what the region holds: it
// is the job's to write.
func openLimits(s machine.Job) (openedLimits, error) {
	beside, err := region.OpenOperatorLimits(s.Path)
	switch {
	case err == nil:
		return openedLimits{beside, true, func() {}}, nil
	case !errors.Is(err, fs.ErrNotExist):
		return openedLimits{}, err
	case s.Err() != nil:
		return openedLimits{}, s.Err()
	}
	r, err := region.OpenForLimits(s.Path)
	if err != nil {
		return openedLimits{}, err
	}
	return openedLimits{r, false, func() { _ = r.Close() }}, nil
}

// devices returns the devices that a limit for all is for: those with a limit, and of a
// job without an operator's limits those in use. Once the size of one device is known, numbers without a size
// are of no device, whatever the region says was used of them.
func (p openedLimits) devices(s machine.Job) (map[int]machine.Device, error) {
	all := map[int]machine.Device{}
	if !p.operator {
		all = byDevice(s)
	}
	var totals [abi.Devices]uint64
	known := false
	for d := range abi.Devices {
		has, err := p.Limit(d)
		if err != nil {
			return nil, err
		}
		if totals[d], err = p.Total(d); err != nil {
			return nil, err
		}
		known = known || totals[d] > 0
		time, err := p.Compute(d)
		if err != nil {
			return nil, err
		}
		of := all[d].Compute
		if of == nil && (time.Share > 0 || time.Max > 0) {
			of = &machine.Compute{Share: time.Share, Max: time.Max, Round: time.Round}
		}
		if has.IsSet() || of != nil || p.operator && totals[d] > 0 {
			all[d] = machine.Device{Device: d, Limited: has.Limited(), Limit: has.Bytes(), Total: totals[d], Compute: of}
		}
	}
	empty := p.operator && len(all) == 0 // it says nothing yet, so a limit for all is for each
	for d := range abi.Devices {
		if empty {
			all[d] = machine.Device{Device: d}
		}
		if known && totals[d] == 0 {
			delete(all, d)
		}
	}
	return all, nil
}

func (a *app) printLimits(s machine.Job, device int) error {
	out := Limits{Job: s.Name, Path: s.Path, Devices: []Limit{}}
	for _, d := range s.Devices {
		if device == allDevices || d.Device == device {
			out.Devices = append(out.Devices, Limit{Device: d, Over: overLimit(d)})
		}
	}
	if a.json {
		return a.out.printJSON(out)
	}
	if len(out.Devices) == 0 {
		a.out.printf("%s: no limits, and nothing was ever used\n", termtext.Printable(s.Title()))
	}
	for _, d := range out.Devices {
		a.out.printf("%s, %s\n", a.out.style(bold, termtext.Printable(s.Title())), a.deviceLine(d.Device))
		if d.Compute != nil {
			a.out.printf("  %s\n", a.out.wrap(d.Compute.Sentence(), 2))
		}
	}
	return nil
}

// changeLimits checks the whole change before it makes any of it.
func (a *app) changeLimits(j job.Job, s machine.Job, r openedLimits, change limitChange) error {
	before, err := r.devices(s)
	if err != nil {
		return err
	}
	devices, err := change.devices(s, before)
	if err != nil {
		return err
	}
	known := 0 // devices whose size a process, or ration run, has found
	for d := range abi.Devices {
		if total, err := r.Total(d); err == nil && total > 0 {
			known++
		}
	}
	var changes []func() error
	for _, d := range devices {
		if total, err := r.Total(d); err == nil && total == 0 && known > 0 {
			return usageError("device %d: the job has no such device (it has %d, counted from 0)", d, known)
		}
		if want := change.memory.For(d); want.IsSet() {
			l, err := newLimit(r, d, want)
			if err != nil {
				return err
			}
			changes = append(changes, func() error { return r.SetLimit(d, l) })
		}
		of, err := change.compute(r, d)
		if err != nil {
			return err
		}
		changes = append(changes, of...)
	}
	for _, change := range changes {
		err := change()
		if errors.Is(err, region.ErrReadOnly) || errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("changing the limit of %s: %w (run it as the owner of that file)", s.Title(), err)
		}
		if err != nil {
			return fmt.Errorf("changing the limit of %s: %w", s.Title(), err)
		}
	}
	after, err := r.devices(s)
	if err != nil {
		return err
	}
	return a.printChange(j, change, devices, before, after)
}

// compute returns the changes of a device's share and cap.
func (c limitChange) compute(r limitPage, device int) (changes []func() error, err error) {
	has, err := r.Compute(device)
	if err != nil {
		return nil, err
	}
	share, most := has.Share, has.Max
	if want := c.share.For(device); want.IsSet() {
		share = want.Percent()
		changes = append(changes, func() error { return r.SetCompute(device, launch.PackCompute(want)) })
	}
	if want := c.cap.For(device); want.IsSet() {
		most = want.Percent()
		changes = append(changes, func() error { return r.SetComputeMax(device, launch.PackCompute(want)) })
	}
	if len(changes) > 0 && most != 0 && share > most {
		return nil, neverGetsShare(device, share, most)
	}
	return changes, nil
}

// devices returns the devices that a change is for, of those that the job has.
func (c limitChange) devices(s machine.Job, has map[int]machine.Device) (devices []int, err error) {
	for d := range abi.Devices {
		_, found := has[d]
		single := c.memory.Device[d].IsSet() || c.share.Device[d].IsSet() || c.cap.Device[d].IsSet()
		rest := c.memory.Default.IsSet() || c.share.Default.IsSet() || c.cap.Default.IsSet()
		switch {
		case c.device != allDevices && single:
			return nil, usageError("--device %d and %v: two ways to name a device (use one of them)", c.device, c)
		case c.device == d, c.device == allDevices && (single || rest && found):
			devices = append(devices, d)
		}
	}
	if len(devices) == 0 {
		return nil, usageError("%s has no limits and uses no device yet (name one: --device 0)", s.Title())
	}
	return devices, nil
}

// String renders what was given.
func (c limitChange) String() string {
	var parts []string
	if c.memory.IsSet() {
		parts = append(parts, c.memory.String())
	}
	if c.share.IsSet() {
		parts = append(parts, computeFlag+" "+c.share.String())
	}
	if c.cap.IsSet() {
		parts = append(parts, computeMaxFlag+" "+c.cap.String())
	}
	return strings.Join(parts, " ")
}

func byDevice(s machine.Job) map[int]machine.Device {
	devices := map[int]machine.Device{}
	for _, d := range s.Devices {
		devices[d.Device] = d
	}
	return devices
}

// newLimit returns a limit as the region has it.
func newLimit(r limitPage, device int, want limit.Memory) (abi.Limit, error) {
	total, err := r.Total(device)
	if err != nil {
		return 0, err
	}
	size, err := want.Of(limit.Size(total))
	least := limit.CheckLeast(size, "", want.String())
	switch most := limit.Size(abi.MaxUnits * abi.Unit); {
	case errors.Is(err, limit.ErrNoMemory):
		return 0, usageError("%v of device %d: no process of the job has found out its size yet (give a size, like 10g)", want, device)
	case err != nil:
		return 0, err
	case size == 0:
		return abi.Unlimited, nil
	case least != nil:
		return 0, least
	case size > most:
		return 0, usageError("limit %v: a region counts up to %v (use none for no limit)", want, most)
	case total > 0 && uint64(size) > total:
		return 0, usageError("limit %v: device %d has %v (use that or less, or none for no limit)", want, device, limit.Size(total))
	}
	return abi.MakeLimit(uint64(size)), nil
}

// printChange prints the limits after a change, beside those before, and what is used.
func (a *app) printChange(j job.Job, change limitChange, devices []int, was, after map[int]machine.Device) error {
	s := reap.ReadJob(j, reap.Options{})
	printError(a.err, s.Err()) // the change has been made
	out := Limits{Job: s.Name, Path: s.Path, Devices: []Limit{}}
	now := byDevice(s)
	var booked map[int]machine.GPU
	if change.memory.IsSet() {
		var err error
		booked, err = agent.Booked(&s)
		a.noteSilent(err, "whether a device is overbooked now is not known")
	}
	for _, d := range devices {
		if _, shown := now[d]; !shown {
			now[d] = after[d]
		}
		l := Limit{Device: now[d], Changed: true, Before: was[d].Limit, Over: overLimit(now[d])}
		l.Device.Device = d // also where nothing is left of it
		if c := was[d].Compute; c != nil {
			l.ShareBefore, l.MaxBefore = c.Share, c.Max
		}
		if change.share.For(d).IsSet() || change.cap.For(d).IsSet() {
			l.Unenforced = notHeld(&s, d)
		}
		if g, known := booked[d]; known && g.Rations > g.Total && now[d].Limited {
			l.Overbooked, l.booked = g.Rations-g.Total, g
		}
		out.Devices = append(out.Devices, l)
	}
	if a.json {
		return a.out.printJSON(out)
	}
	for _, d := range out.Devices {
		a.printDeviceChange(s.Title(), change, d, was[d.Device.Device])
	}
	return nil
}

func (a *app) printDeviceChange(title string, change limitChange, d Limit, was machine.Device) {
	subject := fmt.Sprintf("%s, device %d", a.out.style(bold, termtext.Printable(title)), d.Device.Device)
	if change.memory.For(d.Device.Device).IsSet() {
		a.out.printf("%s: the limit is %s now; it was %s.\n", subject, limitText(d.Device), limitText(was))
		if d.Over > 0 {
			a.out.printf("  %s\n", a.out.wrap(fmt.Sprintf("%s are held. Nothing is taken away; requests are refused until %s were returned.",
				humanfmt.Bytes(d.Used), humanfmt.Bytes(d.Over)), 2))
		}
	}
	if g := d.booked; d.Overbooked > 0 {
		a.out.printf("  %s\n", a.out.wrap(fmt.Sprintf("The device is overbooked: %s %s of its %s, and may find none left within that.",
			humanfmt.Plural(g.Jobs, "job has", "jobs together have"), humanfmt.Bytes(g.Rations), humanfmt.Bytes(g.Total)), 2))
	}
	share, most := 0, 0
	if d.Compute != nil {
		share, most = d.Compute.Share, d.Compute.Max
	}
	if change.share.For(d.Device.Device).IsSet() {
		a.out.printf("%s: the share of its time is %s now; it was %s.\n", subject, percentText(share), percentText(d.ShareBefore))
	}
	if change.cap.For(d.Device.Device).IsSet() {
		a.out.printf("%s: the cap on its time is %s now; it was %s.\n", subject, percentText(most), percentText(d.MaxBefore))
	}
	if d.Unenforced > 0 {
		a.out.printf("  %s\n", a.out.wrap(fmt.Sprintf("%s began when the job had neither: not enforced there until restarted.",
			humanfmt.Plural(d.Unenforced, "process", "processes")), 2))
	}
}

// notHeld counts the processes that hold something of a device and live, and are not held to the share
// or the cap that the job has of it. None are where it has neither.
func notHeld(s *machine.Job, device int) (n int) {
	for _, p := range s.Processes {
		if p.State != machine.Dead && slices.ContainsFunc(p.Holdings, func(h machine.Holding) bool { return h.Device == device && h.Compute != nil && !h.Compute.Held }) {
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

// limitText renders a limit.
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
