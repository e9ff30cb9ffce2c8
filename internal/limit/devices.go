package limit

import (
	"errors"
	"strconv"
)

// Devices is how many of the machine's devices a job has. The zero value is not set.
type Devices uint8

// AllDevices is every device of the machine.
const AllDevices Devices = 255

// ParseDevices parses the value of source: a number of devices, or all.
func ParseDevices(source, value string) (Devices, error) {
	if value == "all" {
		return AllDevices, nil
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 || n > MaxDevices || strconv.Itoa(n) != value {
		return 0, &InputError{Source: source, Value: value, Err: errors.New("not a number of devices"), Use: "1 to " + strconv.Itoa(MaxDevices) + ", or all"}
	}
	return Devices(n), nil
}

// IsSet reports whether a number is set.
func (d Devices) IsSet() bool { return d != 0 }

// String formats d as ParseDevices reads it; a number that is not set is "unset".
func (d Devices) String() string {
	switch d {
	case 0:
		return "unset"
	case AllDevices:
		return "all"
	}
	return strconv.Itoa(int(d))
}

// MarshalText formats d for JSON.
func (d Devices) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads the output of MarshalText.
func (d *Devices) UnmarshalText(text []byte) (err error) {
	if *d = 0; string(text) != "unset" {
		*d, err = ParseDevices("", string(text))
	}
	return err
}
