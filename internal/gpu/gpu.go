// Package gpu reads devices and processes from the NVIDIA driver, through NVML. Commands use it to
// know the devices before a job starts, and the driver's counts for processes. No allocation waits
// for it.
package gpu

import (
	"encoding/hex"
	"errors"
	"slices"
	"strings"

	"ration/internal/limit"
)

// ErrNoDriver is returned if NVML cannot be loaded, or finds no driver.
var ErrNoDriver = errors.New("no NVIDIA driver found")

// Device is a GPU, with the number that NVML and nvidia-smi give it.
type Device struct {
	Index int        `json:"index"`
	UUID  string     `json:"uuid"`
	Name  string     `json:"name"`
	Total limit.Size `json:"total"`
	MIG   bool       `json:"mig"` // divided into MIG devices, which CUDA counts as devices

	// Reserved is the part of Total that the driver keeps for itself. It is zero if the driver does
	// not report it.
	Reserved limit.Size `json:"reserved,omitempty"`

	// Capability is the major and minor compute capability. It is zero if the driver does not
	// report it, or if the devices come from a file.
	Capability [2]int `json:"-"`

	// Failed is why the driver gives no answer about the device, as after a fault of the hardware. Then all else but
	// Index may be unknown.
	Failed error `json:"-"`

	// Parts are the MIG devices of a GPU that is divided, with their numbers in it, and Parent is the UUID of the
	// GPU of a MIG device. They are empty if the devices come from a file.
	Parts  []Device `json:"-"`
	Parent string   `json:"-"`
}

// Process is a process's use of a device, by the driver's count.
type Process struct {
	Device int    `json:"device"`
	PID    int    `json:"pid"` // on the host
	Used   uint64 `json:"used"`
}

// Totals returns the sizes of all devices, by index.
func (d *Driver) Totals() (totals []limit.Size) {
	for _, dev := range d.Devices {
		totals = append(totals, dev.Total)
	}
	return totals
}

// CUDADevices returns what CUDA counts as devices: instead of a GPU that is divided, its MIG devices. The first of them
// has the number of its GPU, and the others follow after all GPUs, so that GPUs keep NVML's numbers.
func (d *Driver) CUDADevices() []Device {
	out := slices.Clone(d.Devices)
	for i, dev := range d.Devices {
		for k, part := range dev.Parts {
			part.Index = i
			if k > 0 {
				part.Index = len(out)
				out = append(out, part)
			} else {
				out[i] = part
			}
		}
	}
	return out
}

// Usable returns how much memory all programs together can have: their contexts, and what they allocate.
func (d Device) Usable() limit.Size { return d.Total - min(d.Reserved, d.Total) }

// UUIDWords returns the UUID as a region stores it.
func (d Device) UUIDWords() (words [2]uint64, ok bool) {
	_, digits, _ := strings.Cut(d.UUID, "-") // GPU-, MIG-
	raw, err := hex.DecodeString(strings.ReplaceAll(digits, "-", ""))
	if err != nil || len(raw) != 16 {
		return words, false
	}
	for i, b := range raw {
		words[i/8] = words[i/8]<<8 | uint64(b)
	}
	return words, true
}

// Sample is the share of a device's time that a process had, sampled by the driver.
type Sample struct {
	PID     int     // on the host
	Percent float64 // of the time since the previous sample
	Time    uint64  // microseconds, on the driver's clock
}

// ErrNoSamples is returned if the driver does not sample the time of processes.
var ErrNoSamples = errors.New("the driver does not sample the time of processes")

// Status is the current state of a device. A pointer is nil if the driver does not report the
// value.
type Status struct {
	Used        uint64   // bytes, by all processes and the driver itself
	Temperature *int     // degrees Celsius
	Power       *float64 // watts
	Utilization *int     // recent per cent of time with work
}

// Describe returns the devices.
func (d *Driver) Describe() []Device { return d.Devices }
