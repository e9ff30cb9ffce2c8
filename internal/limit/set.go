package limit

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"ration/internal/humanfmt"
)

// MaxDevices is the number of devices that a job can have limits for. It equals abi.Devices.
const MaxDevices = 16

// limit is the type of the limits in a [Set].
type limit interface {
	Memory | Compute
	IsSet() bool
	String() string
	words() string
}

// Set has limits for single devices, and a default for all others. Devices have the numbers that
// the job uses.
type Set[L limit] struct {
	Default L
	Device  [MaxDevices]L
}

// ParseMemorySet parses the value of source as memory limits: a limit for all devices (10g, 25%),
// limits by device (0=10g,1=20g), or both (10g,1=20g or 1=20g,others=10g). 0 is an error: a script that
// computes 0 must not get everything.
func ParseMemorySet(source, value string) (Set[Memory], error) {
	set, err := parseSet(source, value, parseSomeMemory, memoryUse)
	part := deviceAlone(value)
	if of := set.Default; part == "" && of.size > 0 && of.size < MaxDevices && set != (Set[Memory]{Default: of}) {
		part = of.String() // in another spelling
	}
	if part != "" {
		return Set[Memory]{}, &InputError{Source: source, Value: value, Err: fmt.Errorf("%q: %w", part, errNoSize), Use: part + "=10g for device " + part}
	}
	return set, err
}

// deviceAlone returns the first part of a list that is the number of a device without a size, as in 0=10g,1. No program
// runs with so few bytes.
func deviceAlone(list string) string {
	for part := range strings.SplitSeq(list, ",") {
		if _, err := parseDevice(part); err == nil && part != list {
			return part
		}
	}
	return ""
}

// parseSomeMemory is parseMemory without 0.
func parseSomeMemory(s string) (Memory, error) {
	m, err := parseMemory(s)
	if err == nil && m.none && !isNone(s) {
		return Memory{}, errNothing
	}
	return m, err
}

// othersName stands for all devices that a list does not name.
const othersName = "others"

// ParseComputeSet is like [ParseMemorySet] for shares and caps: 30, 0=30,1=50%.
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

// add adds one part of a list to the set. With an error it returns a hint what to use instead.
func (s *Set[L]) add(part string, parse func(string) (L, error), limitUse string) (use string, err error) {
	target, text := &s.Default, part
	if index, rest, ok := strings.Cut(part, "="); ok && index == othersName {
		text = rest
	} else if ok {
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
		return "one limit for each device, and one without a device for the others", errDuplicate
	}
	*target = l
	return "", nil
}

// parseDevice accepts only one spelling of each device number, so that 1 and 01 cannot be two
// limits on one device.
func parseDevice(s string) (int, error) {
	i, err := strconv.Atoi(s)
	if err != nil || i < 0 || i >= MaxDevices || strconv.Itoa(i) != s {
		return 0, errDevice
	}
	return i, nil
}

// IsSet reports whether any limit in the set is set.
func (s Set[L]) IsSet() bool { return s != Set[L]{} }

// OnlyNamed reports whether the set has limits for single devices and none for the others.
func (s Set[L]) OnlyNamed() bool { return s.IsSet() && !s.Default.IsSet() }

// For returns the limit of one device.
func (s Set[L]) For(device int) L {
	if device >= 0 && device < MaxDevices && s.Device[device].IsSet() {
		return s.Device[device]
	}
	return s.Default
}

// byDefault reports whether the limit for all devices applies to this one.
func (s Set[L]) byDefault(device int) bool { return s.Default.IsSet() && !s.Device[device].IsSet() }

// String renders s as [ParseMemorySet] and [ParseComputeSet] read it; a set without limits is
// "unset".
func (s Set[L]) String() string { return s.format(L.String) }

// Words formats s for people: like String, but sizes that are not a whole number of MiB are rounded.
func (s Set[L]) Words() string { return s.format(L.words) }

func (s Set[L]) format(each func(L) string) string {
	var parts []string
	if s.Default.IsSet() {
		parts = append(parts, each(s.Default))
	}
	for i, l := range s.Device {
		if l.IsSet() {
			parts = append(parts, strconv.Itoa(i)+"="+each(l))
		}
	}
	if parts == nil {
		return "unset"
	}
	return strings.Join(parts, ",")
}

// MarshalText renders s in JSON.
func (s Set[L]) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText renders.
func (s *Set[L]) UnmarshalText(text []byte) (err error) {
	*s = Set[L]{}
	if string(text) == "unset" {
		return nil
	}
	switch set := any(s).(type) {
	case *Set[Memory]:
		*set, err = ParseMemorySet("", string(text))
	case *Set[Compute]:
		*set, err = ParseComputeSet("", string(text))
	}
	return err
}

// CheckDevices returns an error if the set has a limit on a device that does not exist, given the
// number of devices.
func (s Set[L]) CheckDevices(devices int) error {
	if devices > MaxDevices {
		return fmt.Errorf("of %d devices: %w (at most %d are supported)", devices, errNoDevice, MaxDevices)
	}
	for i := devices; i < MaxDevices; i++ {
		if s.Device[i].IsSet() {
			return fmt.Errorf("%d=%v: %w (nvidia-smi lists %s, the first is 0)", i, s.Device[i], errNoDevice, humanfmt.Plural(devices, "GPU", "GPUs"))
		}
	}
	return nil
}

// Limits are limits by device, as people write them. In a change, limits that are not set stay
// unchanged.
type Limits struct {
	Memory     Set[Memory]  `json:"memory"`
	Compute    Set[Compute] `json:"compute"`           // shares: least part of a device's time
	ComputeMax Set[Compute] `json:"compute_max"`       // caps: largest part of a device's time
	Devices    Devices      `json:"devices,omitzero"`  // number of devices that the job has; not set if the default applies
	Priority   Priority     `json:"priority,omitzero"` // of the job, on all its devices
}

// IsSet reports whether any limit is set.
func (l Limits) IsSet() bool { return l != Limits{} }

// HasDefault reports whether a limit for all devices is set.
func (l Limits) HasDefault() bool {
	return l.Memory.Default.IsSet() || l.Compute.Default.IsSet() || l.ComputeMax.Default.IsSet()
}

// Names reports whether a limit for this device alone is set.
func (l Limits) Names(device int) bool {
	return l.Memory.Device[device].IsSet() || l.Compute.Device[device].IsSet() || l.ComputeMax.Device[device].IsSet()
}

// AppliesByDefault reports whether a limit for all devices applies to this one.
func (l Limits) AppliesByDefault(device int) bool {
	return l.Memory.byDefault(device) || l.Compute.byDefault(device) || l.ComputeMax.byDefault(device)
}

// On converts limits for all devices to limits for one. It returns an error if they name a device.
func (l Limits) On(device int) (out Limits, err error) {
	for d := range MaxDevices {
		if l.Names(d) {
			return out, errTwoWays
		}
	}
	out.Memory.Device[device], out.Compute.Device[device], out.ComputeMax.Device[device] = l.Memory.Default, l.Compute.Default, l.ComputeMax.Default
	out.Priority = l.Priority // which has no device: its caller refuses it
	return out, nil
}

// Or returns the limits. For kinds that are not set it takes those of other.
func (l Limits) Or(other Limits) Limits {
	if !l.Memory.IsSet() {
		l.Memory = other.Memory
	}
	if !l.Compute.IsSet() {
		l.Compute = other.Compute
	}
	if !l.ComputeMax.IsSet() {
		l.ComputeMax = other.ComputeMax
	}
	if !l.Devices.IsSet() {
		l.Devices = other.Devices
	}
	l.Priority = cmp.Or(l.Priority, other.Priority)
	return l
}

// String formats the limits in one line, for [ParseLimits].
func (l Limits) String() string {
	text := fmt.Sprintf("memory=%s compute=%s compute_max=%s", l.Memory, l.Compute, l.ComputeMax)
	if l.Devices.IsSet() {
		text += " devices=" + l.Devices.String()
	}
	if l.Priority != 0 {
		text += " priority=" + l.Priority.String()
	}
	return text
}

// Words formats the limits that are set for people: 10g, share 30%, cap 50%.
func (l Limits) Words() string {
	var parts []string
	add := func(before string, part interface {
		IsSet() bool
		String() string
	}) {
		if part.IsSet() {
			parts = append(parts, before+part.String())
		}
	}
	if l.Memory.IsSet() {
		parts = append(parts, l.Memory.Words())
	}
	add("share ", l.Compute)
	add("cap ", l.ComputeMax)
	switch {
	case l.Devices == 0 || l.Memory.OnlyNamed(): // the names say which, and how many
	case l.Devices == 1:
		parts = append(parts, "on 1 GPU")
	default:
		parts = append(parts, "on "+l.Devices.String()+" GPUs")
	}
	if l.Priority != 0 {
		parts = append(parts, l.Priority.String()+" priority")
	}
	return strings.Join(parts, ", ")
}

// ParseLimits reads limits in the form memory=10g compute=30% compute_max=unset. Each part may be
// left out.
func ParseLimits(text string) (l Limits, err error) {
	for field := range strings.FieldsSeq(text) {
		key, value, _ := strings.Cut(field, "=")
		if value == "unset" {
			continue
		}
		switch key {
		case "memory":
			l.Memory, err = ParseMemorySet(key, value)
		case "compute":
			l.Compute, err = ParseComputeSet(key, value)
		case "compute_max":
			l.ComputeMax, err = ParseComputeSet(key, value)
		case "devices":
			l.Devices, err = ParseDevices(key, value)
		case "priority":
			l.Priority, err = ParsePriority(key, value)
		default:
			err = fmt.Errorf("%q: no part of a ration", field)
		}
		if err != nil {
			return Limits{}, err
		}
	}
	return l, nil
}
