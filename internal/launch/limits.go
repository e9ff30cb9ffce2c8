package launch

import (
	"errors"
	"fmt"
	"strings"

	"ration/internal/abi"
	"ration/internal/gpu"
	"ration/internal/limit"
	"ration/internal/region"
)

// divided says whether some device is cut into parts, which CUDA counts as devices
// of their own. NVML's numbers and sizes say nothing about those, so then only the
// processes themselves can tell what a share is.
func divided(d *gpu.Driver) bool {
	for _, dev := range d.Devices {
		if dev.MIG {
			return true
		}
	}
	return false
}

// least is a limit that somebody may have meant: below it even a context does not
// fit, and 10 is 10 bytes.
const least = limit.MiB

// limits is what the job may have of each device, judged by what there is.
func (p Plan) limits(driver *gpu.Driver, missing error) (region.Limits, error) {
	for i := range limit.MaxDevices {
		if size, err := p.Settings.Memory.For(i).Of(0); err == nil && size > 0 && size < least {
			return region.Limits{}, p.wrong(fmt.Errorf("%v is less than any program needs", size), "a number with m or g, like 10g")
		}
	}
	switch {
	case driver != nil && !divided(driver):
		return p.known(driver)
	case driver == nil:
		p.Warn(fmt.Sprintf("%v; going on, with limits that are not checked against a card", missing))
	}
	return p.unknown(driver)
}

func (p Plan) known(driver *gpu.Driver) (out region.Limits, err error) {
	totals := driver.Totals()
	sizes, err := limit.ResolveMemory(p.Settings.Memory, totals)
	if err != nil {
		return out, p.wrong(err, "a device that nvidia-smi -L lists")
	}
	compute, err := limit.ResolveCompute(p.Settings.Compute, len(totals))
	if err != nil {
		return out, &limit.InputError{Source: limit.EnvCompute, Value: p.Settings.Compute.String(), Err: err, Use: "devices that are there"}
	}
	for i, size := range sizes {
		if size > totals[i] {
			return out, p.wrong(fmt.Errorf("device %d (%s) has %v", i, driver.Devices[i].Name, totals[i]), fmt.Sprintf("at most %s, or a percentage", totals[i].Exact()))
		}
		out.Memory[i] = p.pack(p.Settings.Memory.For(i), size)
		out.Compute[i] = uint64(compute[i])
	}
	return out, nil
}

// unknown is for all devices there might be.
func (p Plan) unknown(driver *gpu.Driver) (out region.Limits, err error) {
	for i := range out.Memory {
		memory := p.Settings.Memory.For(i)
		size, err := memory.Of(0)
		if errors.Is(err, limit.ErrNoMemory) && driver != nil {
			continue // the processes are told, see environ.go
		}
		if err != nil {
			return out, p.wrong(errors.New("a share of a device whose size is not known"), "bytes, like 10g")
		}
		out.Memory[i] = p.pack(memory, size)
		out.Compute[i] = uint64(p.Settings.Compute.For(i).Percent())
	}
	return out, nil
}

func (p Plan) pack(memory limit.Memory, size limit.Size) abi.Limit {
	switch {
	case !memory.IsSet():
		return 0
	case size == 0:
		return abi.Unlimited
	}
	return abi.MakeLimit(uint64(size), int(p.Settings.Tolerance/(limit.OnePercent/10)))
}

// wrong is an error in the limits, where they were written.
func (p Plan) wrong(err error, use string) error {
	return &limit.InputError{Source: p.Source, Value: p.Settings.Memory.String(), Err: err, Use: use}
}

// compare says where a job that was joined has other limits. They count.
func (p Plan) compare(j *Job, own region.Limits) error {
	r, err := region.Open(j.Hold.Job.Path, region.Options{NoCreate: true})
	if err != nil {
		return err
	}
	defer r.Close()
	devices, err := r.Differences(own)
	if err != nil || len(devices) == 0 {
		return err
	}
	var has []string
	for _, d := range devices {
		l, err := r.Limit(d)
		if err != nil {
			return err
		}
		text := "no limit"
		if l.Limited() {
			text = limit.Size(l.Bytes()).String()
		}
		has = append(has, fmt.Sprintf("%s on device %d", text, d))
	}
	p.Warn(fmt.Sprintf("job %s has other limits, which count: %s (ration limit %s changes them)", j.Hold.Job.Name, strings.Join(has, ", "), j.Hold.Job.Name))
	return nil
}
