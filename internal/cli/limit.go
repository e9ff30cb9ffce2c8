package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"github.com/spf13/cobra"

	"ration/internal/abi"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/reap"
	"ration/internal/region"
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
}

// allDevices is --device where it was not given.
const allDevices = -1

func newLimitCommand(a *app) *cobra.Command {
	var device int
	cmd := &cobra.Command{
		Use:   "limit JOB [SIZE]",
		Short: "Show or change a job's limits while it runs",
		Long: `Show a job's limits, or change them while it runs.

JOB is a name that ration ps shows, or the path of a region, with a slash in it.
SIZE is written as everywhere: 10g, 10GiB, 1024m, plain bytes, a share of the
device like 25%, where a process of the job has found out its size, or none. It
is for all devices of the job, for the one that --device names, or as listed:
0=10g,1=20g.

A change holds for every request from then on. If a job holds more than its new
limit, nothing is taken from its processes, and new requests are refused until
enough was returned. A tolerance stays as it is.

Limits that an operator keeps in a file beside the region (PATH.limits) can be
changed by the owner of that file only.

Exit status: 0; 1 if the limit may not be changed; 2 for a size that cannot be;
3 if there is no such job, or its region could not be opened.`,
		Example:           "  ration limit train\n  ration limit train 20g\n  ration limit train 25% --device 1\n  ration limit train 0=10g,1=none",
		Args:              argCount(1, 2, "a job and perhaps a size"),
		ValidArgsFunction: completeJobs(1),
		RunE:              withStatus(func(cmd *cobra.Command, args []string) error { return a.runLimit(cmd, device, args) }),
	}
	cmd.Flags().IntVarP(&device, "device", "d", allDevices, "only this device, counted from 0 as the job sees them")
	cmd.Flags().Lookup("device").DefValue = "0" // which help leaves out: -1 would say nothing
	return cmd
}

func (a *app) runLimit(cmd *cobra.Command, device int, args []string) error {
	if cmd.Flags().Changed("device") && (device < 0 || device >= abi.Devices) {
		return usageError("--device %d: not a device (use 0 to %d)", device, abi.Devices-1)
	}
	j, err := job.Find(args[0])
	if err != nil {
		return err
	}
	s := reap.ReadJob(j, reap.Options{})
	page, err := openLimits(s)
	if err != nil {
		return statusError{err, ExitOpen}
	}
	defer page.close()
	if len(args) == 1 {
		if s.Err() != nil {
			return statusError{s.Err(), ExitOpen}
		}
		return a.printLimits(s, device)
	}
	return a.changeLimits(j, s, page, device, args[1])
}

// limitPage is where a job's limits are: its region, or an operator's file beside it.
type limitPage interface {
	Limit(device int) (abi.Limit, error)
	Total(device int) (uint64, error)
	SetLimit(device int, limit abi.Limit) error
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
		if has.IsSet() || p.operator && totals[d] > 0 {
			all[d] = machine.Device{Device: d, Limited: has.Limited(), Limit: has.Bytes(), Tolerance: has.Tolerance(), Total: totals[d]}
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
		a.out.printf("%s: no limits, and nothing was ever used\n", s.Title())
	}
	for _, d := range out.Devices {
		a.out.printf("%s, %s\n", a.out.style(bold, s.Title()), a.deviceLine(d.Device))
	}
	return nil
}

// changeLimits checks the whole change before it makes any of it.
func (a *app) changeLimits(j job.Job, s machine.Job, r openedLimits, device int, text string) error {
	set, err := limit.ParseMemorySet("", text)
	if err != nil {
		return err
	}
	before, err := r.devices(s)
	if err != nil {
		return err
	}
	devices, err := selectDevices(s, before, set, device)
	if err != nil {
		return err
	}
	limits := map[int]abi.Limit{}
	known := 0 // devices whose size a process, or ration run, has found
	for d := range abi.Devices {
		if total, err := r.Total(d); err == nil && total > 0 {
			known++
		}
	}
	for _, d := range devices {
		if total, err := r.Total(d); err == nil && total == 0 && known > 0 {
			return usageError("device %d: the job has no such device (it has %d, counted from 0)", d, known)
		}
		if limits[d], err = newLimit(r, d, set.For(d)); err != nil {
			return err
		}
	}
	for _, d := range devices {
		err := r.SetLimit(d, limits[d])
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
	return a.printChange(j, devices, before, after)
}

// selectDevices returns the devices that a change is for.
func selectDevices(s machine.Job, has map[int]machine.Device, set limit.Set[limit.Memory], device int) (devices []int, err error) {
	single := set
	single.Default = limit.Memory{}
	switch {
	case device != allDevices && single.IsSet():
		return nil, usageError("--device %d and %v: two ways to name a device (use one of them)", device, set)
	case device != allDevices:
		return []int{device}, nil
	}
	for d := range abi.Devices {
		if _, found := has[d]; set.Device[d].IsSet() || set.Default.IsSet() && found {
			devices = append(devices, d)
		}
	}
	if len(devices) == 0 {
		return nil, usageError("%s has no limits and uses no device yet (name one: --device 0)", s.Title())
	}
	return devices, nil
}

func byDevice(s machine.Job) map[int]machine.Device {
	devices := map[int]machine.Device{}
	for _, d := range s.Devices {
		devices[d.Device] = d
	}
	return devices
}

// newLimit returns a limit as the region has it, with the tolerance of the old one.
func newLimit(r limitPage, device int, want limit.Memory) (abi.Limit, error) {
	old, err := r.Limit(device)
	if err != nil {
		return 0, err
	}
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
	return abi.MakeLimit(uint64(size), old.Tolerance()), nil
}

// printChange prints the limits after a change, beside those before, and what is used.
func (a *app) printChange(j job.Job, devices []int, before, after map[int]machine.Device) error {
	s := reap.ReadJob(j, reap.Options{})
	printError(a.err, s.Err()) // the change has been made
	out := Limits{Job: s.Name, Path: s.Path, Devices: []Limit{}}
	now := byDevice(s)
	for _, d := range devices {
		if _, shown := now[d]; !shown {
			now[d] = after[d]
		}
		out.Devices = append(out.Devices, Limit{Device: now[d], Changed: true, Before: before[d].Limit, Over: overLimit(now[d])})
	}
	if a.json {
		return a.out.printJSON(out)
	}
	for _, d := range out.Devices {
		a.out.printf("%s, device %d: the limit is %s now; it was %s.\n", a.out.style(bold, s.Title()), d.Device.Device,
			limitText(d.Device), limitText(before[d.Device.Device]))
		if d.Over > 0 {
			a.out.printf("  %s\n", a.out.wrap(fmt.Sprintf("%s are held. Nothing is taken away; requests are refused until %s were returned.",
				humanfmt.Bytes(d.Used), humanfmt.Bytes(d.Over)), 2))
		}
	}
	return nil
}

// limitText renders a limit, with its tolerance.
func limitText(d machine.Device) string {
	if !d.Limited {
		return "none"
	}
	text := limit.Size(d.Limit).String()
	if d.Tolerance > 0 {
		text += " and " + strconv.FormatFloat(float64(d.Tolerance)/10, 'f', -1, 64) + " % beyond"
	}
	return text
}

// overLimit returns the bytes in use beyond what may be granted.
func overLimit(d machine.Device) uint64 {
	ceiling := abi.MakeLimit(d.Limit, d.Tolerance).Ceiling() * abi.Unit
	if !d.Limited || d.Used <= ceiling {
		return 0
	}
	return d.Used - ceiling
}
