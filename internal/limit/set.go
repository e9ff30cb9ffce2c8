package limit

import (
	"fmt"
	"strconv"
	"strings"
)

// MaxDevices is how many devices a job can have limits for. It equals abi.Devices.
const MaxDevices = 16

// limit is the type of the limits in a [Set].
type limit interface {
	Memory | Compute
	IsSet() bool
	String() string
}

// Set is a job's limits: one for each device that has its own, and a default for the
// others. Devices are numbered as the job sees them.
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

// ParseComputeSet is [ParseMemorySet] for shares and caps: 30, 0=30,1=50%.
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

// add adds one part of a list to the set. With an error it returns what to use
// instead.
func (s *Set[L]) add(part string, parse func(string) (L, error), limitUse string) (use string, err error) {
	target, text := &s.Default, part
	if index, rest, ok := strings.Cut(part, "="); ok {
		i, err := parseDevice(index)
		if err != nil {
			return deviceUse, err
		}
		target, text = &s.Device[i], rest
	}
	l, err := parse(text)
	if err != nil {
		return limitUse, err
	}
	if (*target).IsSet() {
		return "one limit for each device, and one without a device for the others", ErrDuplicate
	}
	*target = l
	return "", nil
}

var deviceUse = fmt.Sprintf("a device from 0 to %d", MaxDevices-1)

// parseDevice accepts one spelling of each device number, so that 1 and 01 cannot be
// two limits on the same device.
func parseDevice(s string) (int, error) {
	i, err := strconv.Atoi(s)
	if err != nil || i < 0 || i >= MaxDevices || strconv.Itoa(i) != s {
		return 0, ErrDevice
	}
	return i, nil
}

// IsSet reports whether any limit in the set is set. A process with none uses the
// job's.
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

// ResolveMemory returns the limit in bytes on each device, given the size of each; 0 is
// no limit. It returns [ErrNoDevice] for a limit on a device that is not one of them,
// which would otherwise have no effect.
func ResolveMemory(set Set[Memory], totals []Size) ([]Size, error) {
	if err := set.checkDevices(len(totals)); err != nil {
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

// ResolveCompute returns the limit in whole percent on each device, given their number;
// 0 is no limit.
func ResolveCompute(set Set[Compute], devices int) ([]int, error) {
	if err := set.checkDevices(devices); err != nil {
		return nil, fmt.Errorf("compute limit %w", err)
	}
	limits := make([]int, devices)
	for i := range limits {
		limits[i] = set.For(i).Percent()
	}
	return limits, nil
}

// checkDevices returns ErrNoDevice if a device with a limit of its own is not one of so
// many.
func (s Set[L]) checkDevices(devices int) error {
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
