// Package gpu is the driver's own view of this machine, through NVML. It is for
// commands, which want to know what there is before a job starts and what the
// driver says of its processes; nothing in the path of an allocation needs it.
//
// All of cgo is in here, in NVIDIA's bindings.
package gpu

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"ration/internal/limit"
)

// ErrNoDriver is returned where NVML cannot be loaded, or finds no driver.
var ErrNoDriver = errors.New("no NVIDIA driver found")

// Device is one GPU as the machine numbers it, which is nvidia-smi's order.
type Device struct {
	Index int        `json:"index"`
	UUID  string     `json:"uuid"`
	Name  string     `json:"name"`
	Total limit.Size `json:"total"`
	MIG   bool       `json:"mig"` // divided; its parts are devices of their own to CUDA
}

// Process is what the driver says one process holds of a device.
type Process struct {
	Device int    `json:"device"`
	PID    int    `json:"pid"` // the host's
	Used   uint64 `json:"used"`
}

// Driver is an NVML that is up.
type Driver struct {
	lib     nvml.Interface
	Version string // of the kernel driver
	CUDA    int    // the newest it can do, as 13000
	devices []nvml.Device
	Devices []Device
}

// Open finds the driver. An empty path is the linker's choice.
func Open(path string) (*Driver, error) {
	var opts []nvml.LibraryOption
	if path != "" {
		opts = append(opts, nvml.WithLibraryPath(path))
	}
	d := &Driver{lib: nvml.New(opts...)}
	if ret := d.lib.Init(); ret != nvml.SUCCESS {
		return nil, noDriver(ret)
	}
	if err := d.look(); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// noDriver tells the ways apart in which there can be none.
func noDriver(ret nvml.Return) error {
	switch ret {
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return fmt.Errorf("loading libnvidia-ml.so.1: %w (install the driver, or in a container use the NVIDIA runtime)", ErrNoDriver)
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return fmt.Errorf("starting NVML: %w: its kernel module is not loaded (try nvidia-smi)", ErrNoDriver)
	}
	return fmt.Errorf("starting NVML: %w: %s (try nvidia-smi)", ErrNoDriver, text(ret))
}

// text is what a code means; an old library's own words may not know it.
func text(ret nvml.Return) string {
	return fmt.Sprintf("%s (%d)", strings.ToLower(nvml.ErrorString(ret)), int(ret))
}

func (d *Driver) look() error {
	if version, ret := d.lib.SystemGetDriverVersion(); ret == nvml.SUCCESS {
		d.Version = version
	}
	if cuda, ret := d.lib.SystemGetCudaDriverVersion(); ret == nvml.SUCCESS {
		d.CUDA = cuda
	}
	n, ret := d.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return fmt.Errorf("counting devices: %s (try nvidia-smi)", text(ret))
	}
	for i := range n {
		handle, ret := d.lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			return fmt.Errorf("looking at device %d: %s (try nvidia-smi)", i, text(ret))
		}
		dev := Device{Index: i}
		if dev.UUID, ret = handle.GetUUID(); ret != nvml.SUCCESS {
			return fmt.Errorf("looking at device %d: %s (try nvidia-smi)", i, text(ret))
		}
		memory, ret := handle.GetMemoryInfo()
		if ret != nvml.SUCCESS {
			return fmt.Errorf("asking device %d for its memory: %s (try nvidia-smi)", i, text(ret))
		}
		dev.Total = limit.Size(memory.Total)
		dev.Name, _ = handle.GetName() // for people only
		if d.lib.Extensions().LookupSymbol("nvmlDeviceGetMigMode") == nil {
			mode, _, ret := handle.GetMigMode()
			dev.MIG = ret == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE
		}
		d.devices, d.Devices = append(d.devices, handle), append(d.Devices, dev)
	}
	return nil
}

// Processes is what the driver says its processes hold. A size it will not tell
// is left out.
func (d *Driver) Processes() ([]Process, error) {
	var out []Process
	for i, handle := range d.devices {
		list, ret := handle.GetComputeRunningProcesses()
		if ret != nvml.SUCCESS {
			return nil, fmt.Errorf("asking device %d for its processes: %s", i, text(ret))
		}
		for _, p := range list {
			if p.UsedGpuMemory != ^uint64(0) {
				out = append(out, Process{i, int(p.Pid), p.UsedGpuMemory})
			}
		}
	}
	return out, nil
}

// Totals are the sizes of all devices, by index.
func (d *Driver) Totals() (totals []limit.Size) {
	for _, dev := range d.Devices {
		totals = append(totals, dev.Total)
	}
	return totals
}

// Close lets go of the driver.
func (d *Driver) Close() {
	_ = d.lib.Shutdown() // there is nothing left to do about it
}

// Words is a UUID as a region keeps it.
func (d Device) Words() (words [2]uint64, ok bool) {
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

// Free is what nobody holds of a device.
func (d *Driver) Free(device int) (uint64, error) {
	if device >= len(d.devices) {
		return 0, fmt.Errorf("asking device %d for its memory: there are %d", device, len(d.devices))
	}
	memory, ret := d.devices[device].GetMemoryInfo()
	if ret != nvml.SUCCESS {
		return 0, fmt.Errorf("asking device %d for its memory: %s (try nvidia-smi)", device, text(ret))
	}
	return memory.Free, nil
}
