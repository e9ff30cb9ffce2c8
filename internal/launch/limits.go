package launch

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"ration/internal/abi"
	"ration/internal/gpu"
	"ration/internal/limit"
	"ration/internal/region"
)

// hasMIG reports whether a device is divided into MIG devices, which CUDA counts as
// devices of their own. NVML's numbers and sizes are not those of MIG devices, so only
// the processes can resolve a share of one.
func hasMIG(d *gpu.Driver) bool {
	return slices.ContainsFunc(d.Devices, func(dev gpu.Device) bool { return dev.MIG })
}

// limits returns the job's limits, checked against the devices that there are. missing
// is why there is no driver.
func (p Plan) limits(driver *gpu.Driver, missing error) (region.Limits, error) {
	for i := range limit.MaxDevices {
		size, _ := p.Settings.Memory.For(i).Of(0) // nothing of what is a share
		if err := limit.CheckLeast(size, p.Sources.Memory, p.Settings.Memory.String()); err != nil {
			return region.Limits{}, err
		}
	}
	if driver != nil && !hasMIG(driver) {
		return p.limitsOf(driver)
	}
	if driver != nil && p.standing {
		// The processes resolve a share of a MIG device, from their environment. A standing job
		// does not know which program starts them.
		return p.uncheckedLimits(nil)
	}
	out, err := p.uncheckedLimits(driver)
	switch {
	case driver != nil:
	case err != nil:
		return out, fmt.Errorf("%w\n%w", missing, err)
	case p.Settings.Memory.IsSet():
		p.Warn(fmt.Sprintf("%v; continuing, with limits that are not checked against a device", missing))
	default:
		p.Warn(fmt.Sprintf("%v; continuing", missing))
	}
	return out, err
}

// limitsOf returns the limits on the driver's devices.
func (p Plan) limitsOf(driver *gpu.Driver) (out region.Limits, err error) {
	totals := driver.Totals()
	const use = "a device that nvidia-smi -L lists"
	if err := p.Settings.Memory.CheckDevices(len(totals)); err != nil {
		return out, p.memoryError(fmt.Errorf("memory limit %w", err), use)
	}
	for source, set := range map[string]limit.Set[limit.Compute]{p.Sources.Compute: p.Settings.Compute, p.Sources.ComputeMax: p.Settings.ComputeMax} {
		if err := set.CheckDevices(len(totals)); err != nil {
			return out, &limit.InputError{Source: source, Value: set.String(), Err: fmt.Errorf("compute limit %w", err), Use: use}
		}
	}
	out.Round = uint64(p.Settings.Round)
	for i, total := range totals {
		memory := p.Settings.Memory.For(i)
		size, err := memory.Of(total)
		if err != nil {
			return out, p.memoryError(fmt.Errorf("memory limit of device %d: %w", i, err), use)
		}
		if size > total {
			return out, p.memoryError(fmt.Errorf("device %d (%s) has %v", i, driver.Devices[i].Name, total), fmt.Sprintf("at most %s, or a percentage", total.Exact()))
		}
		out.Memory[i] = packMemory(memory, size)
		out.Compute[i], out.ComputeMax[i] = uint64(p.Settings.Compute.For(i)), uint64(p.Settings.ComputeMax.For(i))
	}
	return out, nil
}

// uncheckedLimits returns the limits on every device number, for devices that are not known here.
func (p Plan) uncheckedLimits(driver *gpu.Driver) (out region.Limits, err error) {
	out.Round = uint64(p.Settings.Round)
	for i := range out.Memory {
		out.Compute[i], out.ComputeMax[i] = uint64(p.Settings.Compute.For(i)), uint64(p.Settings.ComputeMax.For(i))
		memory := p.Settings.Memory.For(i)
		size, err := memory.Of(0)
		if errors.Is(err, limit.ErrNoMemory) && driver != nil {
			continue // the processes resolve it, see environ.go
		}
		if err != nil {
			return out, p.memoryError(errors.New("a share of a device whose size is not known"), "bytes, like 10g")
		}
		out.Memory[i] = packMemory(memory, size)
	}
	return out, nil
}

// packMemory returns a memory limit as a region has it.
func packMemory(memory limit.Memory, size limit.Size) abi.Limit {
	switch {
	case !memory.IsSet():
		return 0
	case size == 0:
		return abi.Unlimited
	}
	return abi.MakeLimit(uint64(size))
}

// memoryError is an error in the memory limits, which names where they came from.
func (p Plan) memoryError(err error, use string) error {
	return &limit.InputError{Source: p.Sources.Memory, Value: p.Settings.Memory.String(), Err: err, Use: use}
}

// warnOfOtherLimits warns if the job that was joined has other limits than the plan.
func (p Plan) warnOfOtherLimits(j *Job, own region.Limits) error {
	r, err := region.Open(j.Lock.Job.Path, region.Options{NoCreate: true})
	if err != nil {
		return err
	}
	defer r.Close()
	j.created = r.Created()
	devices, err := r.Differences(own)
	if err != nil || len(devices) == 0 {
		return err
	}
	var jobLimits []string
	for _, d := range devices {
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
	p.Warn(fmt.Sprintf("job %s has other limits, which count: %s (ration limit %s changes them)", j.Lock.Job.Name, strings.Join(jobLimits, ", "), j.Lock.Job.Name))
	return nil
}

// computeText renders a share and a cap in a sentence.
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
