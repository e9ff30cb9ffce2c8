package launch

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"ration/internal/abi"
	"ration/internal/gpu"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/region"
)

// hasMIG reports whether a device is divided into MIG instances, which CUDA counts as devices.
// NVML's numbers and sizes are not those of MIG instances, so only the processes can resolve a
// percentage of one.
func hasMIG(d *gpu.Driver) bool {
	return slices.ContainsFunc(d.Devices, func(dev gpu.Device) bool { return dev.MIG })
}

// limits returns the job's limits, checked against the existing devices. If the devices are unknown
// here, it returns limits for every device number. If there is no driver, missing says why.
func (p Plan) limits(driver *gpu.Driver, missing error) (out region.Limits, err error) {
	for i := range limit.MaxDevices {
		size, _ := p.Settings.Memory.For(i).Of(0) // 0 for a percentage
		if err := limit.CheckLeast(size, p.Sources.Memory, p.memoryText()); err != nil {
			return out, err
		}
	}
	known := driver != nil && !hasMIG(driver) && p.Present == nil // with Present the limits have the job's numbers
	totals := make([]limit.Size, limit.MaxDevices)
	if known {
		totals = driver.Totals()
		if err := p.checkDevices(len(totals)); err != nil {
			return out, err
		}
	}
	out.Round, out.Priority, out.WaitAlloc = uint64(p.Settings.Round), uint64(p.Settings.Priority), uint64(p.Settings.WaitAlloc)
	for i, total := range totals {
		out.Compute[i], out.ComputeMax[i] = uint64(p.Settings.Compute.For(i)), uint64(p.Settings.ComputeMax.For(i))
		memory := p.Settings.Memory.For(i)
		if known && driver.Devices[i].Failed != nil {
			if memory.IsSet() || p.excludesOthers() {
				out.Memory[i] = abi.MakeLimit(0) // the job is on the others
			}
			continue
		}
		whole := total
		if known && p.standing {
			// Operators divide a device by percentages: all of them together must be what programs can have.
			whole = driver.Devices[i].Usable()
		}
		size, err := memory.Of(whole)
		switch {
		case known && err != nil:
			return out, p.memoryError(fmt.Errorf("memory limit of device %d: %w", i, err), useListed)
		case known && size > total && !p.Within.Memory[i].Limited():
			return out, p.memoryError(fmt.Errorf("device %d (%s) has %v", i, driver.Devices[i].Name, total), fmt.Sprintf("at most %s, or a percentage", total.Exact()))
		case errors.Is(err, limit.ErrNoMemory) && driver != nil && !p.standing:
			// The processes resolve a percentage of a MIG instance, from their environment
			// (environ.go). A standing job does not know which program starts them.
			continue
		case err != nil:
			err = p.memoryError(errors.New("a share of a device whose size is not known"), "bytes, like 10g")
			if driver == nil {
				err = fmt.Errorf("%w\n%w", missing, err)
			}
			return out, err
		case size > 0:
			out.Memory[i] = abi.MakeLimit(uint64(size))
		case memory.IsSet():
			out.Memory[i] = abi.Unlimited
		case p.excludesOthers():
			out.Memory[i] = abi.MakeLimit(0)
		}
	}
	if driver == nil && p.Wait == nil && !p.chooses() { // with these a command ends without a driver, and says so
		unchecked := ""
		if p.Settings.Memory.IsSet() {
			unchecked = ", with limits that are not checked against a device"
		}
		p.Warn(fmt.Sprintf("%v; continuing%s", missing, unchecked))
	}
	return out, nil
}

// excludesOthers reports whether the job cannot use the devices that its limits do not name. HAMi-core's
// variables limit only the devices that they name.
func (p Plan) excludesOthers() bool {
	return p.Settings.Memory.OnlyNamed() && p.Sources.Memory != limit.EnvMemory
}

// checkVisible returns an error if the job can use none of the devices that CUDA_VISIBLE_DEVICES lists. A
// list with anything but numbers is not checked.
func (p Plan) checkVisible(visible string) error {
	if !p.excludesOthers() || visible == "" {
		return nil
	}
	for part := range strings.SplitSeq(visible, ",") {
		d, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || d < 0 || d >= limit.MaxDevices || p.Settings.Memory.For(d).IsSet() {
			return nil
		}
	}
	return p.memoryError(fmt.Errorf("the job has no memory of the devices in CUDA_VISIBLE_DEVICES=%s", visible),
		"the numbers of these devices, or others=none for no limit on devices that are not named")
}

const useListed = "a device that nvidia-smi -L lists"

// checkDevices returns an error for limits on devices that do not exist.
func (p Plan) checkDevices(n int) error {
	if err := p.Settings.Memory.CheckDevices(n); err != nil {
		return p.memoryError(fmt.Errorf("memory limit %w", err), useListed)
	}
	for source, set := range map[string]limit.Set[limit.Compute]{p.Sources.Compute: p.Settings.Compute, p.Sources.ComputeMax: p.Settings.ComputeMax} {
		if err := set.CheckDevices(n); err != nil {
			return &limit.InputError{Source: source, Value: set.String(), Err: fmt.Errorf("compute limit %w", err), Use: useListed}
		}
	}
	return nil
}

// checkLeast returns an error for a limit with which no program runs, as 10 for 10g: that is no request for the policy.
func (p Plan) checkLeast() error {
	for d := range abi.Devices {
		if size, err := p.Settings.Memory.For(d).Of(0); err == nil {
			if err := limit.CheckLeast(size, p.Sources.Memory, p.memoryText()); err != nil {
				return err
			}
		}
	}
	return nil
}

// memoryError returns an error in the memory limits that says where they came from.
func (p Plan) memoryError(err error, use string) error {
	return &limit.InputError{Source: p.Sources.Memory, Value: p.memoryText(), Err: err, Use: use}
}

// memoryText returns the memory limits in the user's words, if these are known.
func (p Plan) memoryText() string {
	return cmp.Or(p.Sources.MemoryText, p.Settings.Memory.String())
}

// unlimitedText warns that no limit of memory is set.
func (p Plan) unlimitedText() string {
	if p.Sources.Misplaced {
		return "no limit is set: " + p.misplacedText()
	}
	return "no limit is set: the job is counted, and refused nothing (--mem 10g would limit it; --mem none is the same without this line)"
}

// misplacedText says that a limit after the command is none.
func (p Plan) misplacedText() string {
	return "--mem after the command is an argument of the command (flags of ration run go before it: ration run --mem 10g -- " + p.Command[0] + ")"
}

// warnOfOtherLimits warns if the limits of the joined job differ from the plan's.
func (p Plan) warnOfOtherLimits(j *Job, own region.Limits) error {
	r, err := region.Open(j.Lock.Job.Path, region.Options{NoCreate: true})
	if err != nil {
		return err
	}
	defer r.Close()
	j.created = r.Created()
	if theirs := job.InfoOf(j.Lock.Job); p.SleepAfter != 0 && (theirs.SleepAfter != p.SleepAfter || theirs.WakeManual != p.WakeManual) {
		p.Warn(fmt.Sprintf("job %s was started with another --sleep-after or --wake, which counts", j.Lock.Job.Name))
	}
	if err := p.warnOfOtherDevices(j, r); err != nil {
		return err
	}
	devices, err := r.Differences(own)
	if err != nil || len(devices) == 0 {
		return err
	}
	var jobLimits []string
	for _, d := range devices {
		if hidden, _ := r.Hidden(d); hidden && p.Settings.Devices.IsSet() {
			continue
		}
		l, err := r.Limit(d)
		if err != nil {
			return err
		}
		c, err := r.Compute(d)
		if err != nil {
			return err
		}
		text := "no limit"
		if l.Limited() {
			text = limit.Size(l.Bytes()).String()
		}
		if own.Compute[d] != 0 || own.ComputeMax[d] != 0 {
			text += " of memory and " + computeText(c)
		}
		jobLimits = append(jobLimits, fmt.Sprintf("%s on device %d", text, d))
	}
	if len(jobLimits) == 0 {
		return nil
	}
	p.Warn(fmt.Sprintf("job %s has other limits, which count: %s (ration limit %s changes them)", j.Lock.Job.Name, strings.Join(jobLimits, ", "), j.Lock.Job.Name))
	return nil
}

// warnOfOtherDevices warns if the joined job is on another number of devices than the plan's.
func (p Plan) warnOfOtherDevices(j *Job, r *region.Region) error {
	on, machine := 0, 0
	for d := range limit.MaxDevices {
		total, err := r.Total(d)
		hidden, err2 := r.Hidden(d)
		l, err3 := r.Limit(d)
		if err := cmp.Or(err, err2, err3); err != nil {
			return err
		}
		if total > 0 {
			machine++
			if !hidden && (!l.Limited() || l.Bytes() > 0) {
				on++
			}
		}
	}
	asked := int(p.Settings.Devices)
	if p.Settings.Devices == limit.AllDevices {
		asked = machine
	}
	if asked != 0 && machine > 0 && asked != on { // without a device that is known it cannot be said
		p.Warn(fmt.Sprintf("job %s is on %s, which counts: --devices %s is for a new job", j.Lock.Job.Name, humanfmt.Plural(on, "device", "devices"), p.Settings.Devices))
	}
	return nil
}

// computeText describes a share and a cap for a sentence.
func computeText(c region.Compute) string {
	switch {
	case c.Share != 0 && c.Max != 0:
		return fmt.Sprintf("%d to %d %% of its time", c.Share, c.Max)
	case c.Share != 0:
		return fmt.Sprintf("at least %d %% of its time", c.Share)
	case c.Max != 0:
		return fmt.Sprintf("at most %d %% of its time", c.Max)
	}
	return "any of its time"
}
