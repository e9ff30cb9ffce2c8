package limit

import (
	"fmt"
	"strconv"
	"strings"
)

// MaxDevices is how many devices a job can have limits for, and a region room
// for.
const MaxDevices = 16

// limit is what a [Set] holds for each device.
type limit interface {
	Memory | Compute
	IsSet() bool
	String() string
}

// Set is the limits of one job: one for each device that has its own, and a
// default for the others. Devices are numbered as the job sees them.
type Set[L limit] struct {
	Default L
	Device  [MaxDevices]L
}

// ParseMemorySet reads the value of a flag or variable that gives memory limits
// for several devices: a limit for all (10g, 25%), limits by device
// (0=10g,1=20g), or both (10g,1=20g). Errors name it as source.
func ParseMemorySet(source, value string) (Set[Memory], error) {
	return parseSet(source, value, parseMemory, memoryUse)
}

// ParseComputeSet is [ParseMemorySet] for compute limits: 30, 0=30,1=50%.
func ParseComputeSet(source, value string) (Set[Compute], error) {
	return parseSet(source, value, parseCompute, computeUse)
}

func parseSet[L limit](source, value string, parse func(string) (L, error), use string) (Set[L], error) {
	var set Set[L]
	for part := range strings.SplitSeq(value, ",") {
		if use, err := set.add(part, parse, use); err != nil {
			if part != value {
				err = fmt.Errorf("%q: %w", part, err)
			}
			return Set[L]{}, &InputError{Source: source, Value: value, Err: err, Use: use}
		}
	}
	return set, nil
}

// add takes one part of a list into the set, or returns what is wrong with it
// and what to use instead.
func (s *Set[L]) add(part string, parse func(string) (L, error), limitUse string) (use string, err error) {
	place, text := &s.Default, part
	if index, rest, ok := strings.Cut(part, "="); ok {
		i, err := parseDevice(index)
		if err != nil {
			return deviceUse, err
		}
		place, text = &s.Device[i], rest
	}
	l, err := parse(text)
	if err != nil {
		return limitUse, err
	}
	if (*place).IsSet() {
		return "one limit for each device, and one without a device for the others", ErrDuplicate
	}
	*place = l
	return "", nil
}

var deviceUse = fmt.Sprintf("a device from 0 to %d", MaxDevices-1)

// parseDevice takes one spelling for each device, so that 1 and 01 cannot
// hold two limits for the same one.
func parseDevice(s string) (int, error) {
	i, err := strconv.Atoi(s)
	if err != nil || i < 0 || i >= MaxDevices || strconv.Itoa(i) != s {
		return 0, ErrDevice
	}
	return i, nil
}

// IsSet reports whether the set holds any limit at all. A process whose set is
// not set has no opinion, and takes the job's limits as it finds them.
func (s Set[L]) IsSet() bool { return s != Set[L]{} }

// For returns the limit of one device.
func (s Set[L]) For(device int) L {
	if device >= 0 && device < MaxDevices && s.Device[device].IsSet() {
		return s.Device[device]
	}
	return s.Default
}

// String renders s as [ParseMemorySet] and [ParseComputeSet] read it; a set
// without limits is "unset".
func (s Set[L]) String() string {
	var parts []string
	if s.Default.IsSet() {
		parts = append(parts, s.Default.String())
	}
	for i, l := range s.Device {
		if l.IsSet() {
			parts = append(parts, strconv.Itoa(i)+"="+l.String())
		}
	}
	if parts == nil {
		return "unset"
	}
	return strings.Join(parts, ",")
}

// ResolveMemory returns the limit in bytes of each device, given how much
// memory each has; 0 is no limit. A limit for a device beyond those is
// [ErrNoDevice]: it was meant for something, and would otherwise be lost.
func ResolveMemory(set Set[Memory], totals []Size) ([]Size, error) {
	if err := set.fits(len(totals)); err != nil {
		return nil, fmt.Errorf("memory limit %w", err)
	}
	limits := make([]Size, len(totals))
	for i, total := range totals {
		size, err := set.For(i).Of(total)
		if err != nil {
			return nil, fmt.Errorf("memory limit of device %d: %w", i, err)
		}
		limits[i] = size
	}
	return limits, nil
}

// ResolveCompute returns the limit in whole percent of each of so many
// devices; 0 is no limit.
func ResolveCompute(set Set[Compute], devices int) ([]int, error) {
	if err := set.fits(devices); err != nil {
		return nil, fmt.Errorf("compute limit %w", err)
	}
	limits := make([]int, devices)
	for i := range limits {
		limits[i] = set.For(i).Percent()
	}
	return limits, nil
}

// fits checks that every device with a limit of its own is one of so many.
func (s Set[L]) fits(devices int) error {
	if devices < 0 || devices > MaxDevices {
		return fmt.Errorf("of %d devices: %w (at most %d are supported)", devices, ErrNoDevice, MaxDevices)
	}
	for i := devices; i < MaxDevices; i++ {
		if s.Device[i].IsSet() {
			return fmt.Errorf("%d=%v: %w (the job sees %d, counted from 0)", i, s.Device[i], ErrNoDevice, devices)
		}
	}
	return nil
}
