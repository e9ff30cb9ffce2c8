//go:build cgo

package gpu

// #include <dlfcn.h>
// // A policy may load libration.so into this process, and it may hide devices from NVML.
// static void show_machine(void)
// {
// 	void (*show)(void) = dlsym(RTLD_DEFAULT, "ration_show_machine");
// 	if (show)
// 		show();
// }
import "C"

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"ration/internal/limit"
)

// Driver is an open NVML.
type Driver struct {
	Version string // of the kernel driver
	CUDA    int    // the newest CUDA version that it supports, as in 13000
	Devices []Device
	library *library // nil if NVML was not started
	lib     nvml.Interface
	handles []nvml.Device // of Devices
}

// Open loads NVML from a path, or from the linker's search path if path is empty. Goroutines may open it at once.
func Open(path string) (d *Driver, err error) {
	C.show_machine()
	d = &Driver{library: libraryOf(path)}
	if d.lib, err = d.library.start(); err != nil {
		return nil, err
	}
	if err := d.readDevices(); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// OpenFake opens the stand-in driver in folder. state is the folder with the state of the stand-in
// machine. It sets the stand-in's variables in this process's environment.
func OpenFake(folder, machine, state string) (*Driver, error) {
	for key, value := range map[string]string{"FAKEGPU": machine, "FAKEGPU_STATE": state} {
		if err := os.Setenv(key, value); err != nil {
			return nil, fmt.Errorf("setting %s: %w", key, err)
		}
	}
	d, err := Open(filepath.Join(folder, "libnvidia-ml.so.1"))
	if err != nil {
		return nil, &limit.InputError{Source: "--fake-gpu", Value: machine, Err: errors.New("not a stand-in machine"),
			Use: "MODEL[xCOUNT][:SIZE], with h200, h100, a100 or small, like h200x2 or small:512m"}
	}
	return d, nil
}

// noDriver explains why NVML could not be initialised.
func noDriver(ret nvml.Return) error {
	switch ret {
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return fmt.Errorf("loading libnvidia-ml.so.1: %w (install the driver, or in a container use the NVIDIA runtime)", ErrNoDriver)
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return fmt.Errorf("starting NVML: %w: its kernel module is not loaded (try nvidia-smi)", ErrNoDriver)
	}
	return fmt.Errorf("starting NVML: %w: %s (try nvidia-smi)", ErrNoDriver, errorText(ret))
}

// errorText formats an error code with its number, because an old library may not know its text.
func errorText(ret nvml.Return) string {
	return fmt.Sprintf("%s (%d)", strings.ToLower(nvml.ErrorString(ret)), int(ret))
}

func (d *Driver) readDevices() error {
	if version, ret := d.lib.SystemGetDriverVersion(); ret == nvml.SUCCESS {
		d.Version = version
	}
	if cuda, ret := d.lib.SystemGetCudaDriverVersion(); ret == nvml.SUCCESS {
		d.CUDA = cuda
	}
	n, ret := d.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return fmt.Errorf("counting devices: %s (try nvidia-smi)", errorText(ret))
	}
	for i := range n {
		dev, handle := d.readDevice(i)
		d.handles, d.Devices = append(d.handles, handle), append(d.Devices, dev)
	}
	if !slices.ContainsFunc(d.Devices, func(dev Device) bool { return dev.Failed == nil }) && n > 0 {
		return d.Devices[0].Failed
	}
	return nil
}

// readDevice reads a device. One that does not answer must not hide the others.
func (d *Driver) readDevice(i int) (dev Device, handle nvml.Device) {
	dev.Index = i
	handle, ret := d.lib.DeviceGetHandleByIndex(i)
	if ret != nvml.SUCCESS {
		dev.Failed = fmt.Errorf("reading device %d: %s (try nvidia-smi)", i, errorText(ret))
		return dev, nil
	}
	if dev.UUID, ret = handle.GetUUID(); ret != nvml.SUCCESS {
		dev.Failed = fmt.Errorf("reading device %d: %s (try nvidia-smi)", i, errorText(ret))
		return dev, nil
	}
	memory, ret := handle.GetMemoryInfo()
	if ret != nvml.SUCCESS {
		dev.Failed = fmt.Errorf("asking device %d for its memory: %s (try nvidia-smi)", i, errorText(ret))
		return dev, nil
	}
	dev.Total = limit.Size(memory.Total)
	if d.lib.Extensions().LookupSymbol("nvmlDeviceGetMemoryInfo_v2") == nil {
		if memory, ret := handle.GetMemoryInfo_v2(); ret == nvml.SUCCESS {
			dev.Reserved = limit.Size(memory.Reserved)
		}
	}
	dev.Name, _ = handle.GetName() // only for messages
	if d.lib.Extensions().LookupSymbol("nvmlDeviceGetCudaComputeCapability") == nil {
		if major, minor, ret := handle.GetCudaComputeCapability(); ret == nvml.SUCCESS {
			dev.Capability = [2]int{major, minor}
		}
	}
	if d.lib.Extensions().LookupSymbol("nvmlDeviceGetMigMode") == nil {
		mode, _, ret := handle.GetMigMode()
		dev.MIG = ret == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE
	}
	if dev.MIG {
		dev.Parts = parts(handle, dev)
	}
	return dev, handle
}

// parts returns the MIG devices of a GPU that is divided. It leaves out those that do not answer: they are being made or
// removed.
func parts(gpu nvml.Device, of Device) (out []Device) {
	most, _ := gpu.GetMaxMigDeviceCount()
	for i := range most {
		handle, ret := gpu.GetMigDeviceHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue
		}
		part := Device{Index: i, Capability: of.Capability, Parent: of.UUID}
		part.UUID, ret = handle.GetUUID()
		memory, ret2 := handle.GetMemoryInfo()
		if ret != nvml.SUCCESS || ret2 != nvml.SUCCESS {
			continue
		}
		part.Total = limit.Size(memory.Total)
		if memory, ret := handle.GetMemoryInfo_v2(); ret == nvml.SUCCESS {
			part.Reserved = limit.Size(memory.Reserved)
		}
		part.Name, _ = handle.GetName() // only for messages
		out = append(out, part)
	}
	return out
}

// Processes returns the driver's count for each process. It leaves out processes without a size. With an error, it returns
// those on the devices that answer.
func (d *Driver) Processes() (out []Process, err error) {
	for i, handle := range d.handles {
		if handle == nil {
			err = errors.Join(err, d.Devices[i].Failed)
			continue
		}
		list, ret := handle.GetComputeRunningProcesses()
		if ret != nvml.SUCCESS {
			err = errors.Join(err, fmt.Errorf("asking device %d for its processes: %s", i, errorText(ret)))
			continue
		}
		for _, p := range list {
			if p.UsedGpuMemory != ^uint64(0) {
				out = append(out, Process{i, int(p.Pid), p.UsedGpuMemory})
			}
		}
	}
	return out, err
}

// handle returns the handle of a device that has answered.
func (d *Driver) handle(device int) (nvml.Device, error) {
	if device >= len(d.handles) {
		return nil, fmt.Errorf("asking device %d: there are %d", device, len(d.handles))
	}
	return d.handles[device], d.Devices[device].Failed
}

// Close shuts NVML down.
func (d *Driver) Close() {
	if !d.isKnown() {
		d.library.end()
	}
}

// isKnown reports whether the devices came from a file and NVML was not started.
func (d *Driver) isKnown() bool { return d.library == nil }

// Free returns the bytes of a device that no process holds.
func (d *Driver) Free(device int) (uint64, error) {
	handle, err := d.handle(device)
	if err != nil {
		return 0, err
	}
	memory, ret := handle.GetMemoryInfo()
	if ret != nvml.SUCCESS {
		return 0, fmt.Errorf("asking device %d for its memory: %s (try nvidia-smi)", device, errorText(ret))
	}
	return memory.Free, nil
}

// Samples returns the samples of a device that are newer than since, which is the Time of a sample,
// or 0. An empty result without an error means that no process used the device.
func (d *Driver) Samples(device int, since uint64) ([]Sample, error) {
	handle, err := d.handle(device)
	if err != nil || d.lib.Extensions().LookupSymbol("nvmlDeviceGetProcessUtilization") != nil {
		return nil, ErrNoSamples
	}
	list, ret := handle.GetProcessUtilization(since)
	switch ret {
	case nvml.SUCCESS:
	case nvml.ERROR_NOT_FOUND:
		return nil, nil
	default:
		return nil, fmt.Errorf("asking device %d for the time of its processes: %w: %s", device, ErrNoSamples, errorText(ret))
	}
	var out []Sample
	for _, s := range list {
		if s.TimeStamp > since {
			out = append(out, Sample{int(s.Pid), float64(s.SmUtil), s.TimeStamp})
		}
	}
	return out, nil
}

// Status returns the current state of a device.
func (d *Driver) Status(device int) (s Status, err error) {
	handle, err := d.handle(device)
	if err != nil {
		return s, err
	}
	memory, ret := handle.GetMemoryInfo()
	if ret != nvml.SUCCESS {
		return s, fmt.Errorf("asking device %d for its memory: %s (try nvidia-smi)", device, errorText(ret))
	}
	s.Used = memory.Used
	has := func(symbol string) bool { return d.lib.Extensions().LookupSymbol(symbol) == nil }
	if has("nvmlDeviceGetTemperature") {
		if t, ret := handle.GetTemperature(nvml.TEMPERATURE_GPU); ret == nvml.SUCCESS {
			celsius := int(t)
			s.Temperature = &celsius
		}
	}
	if has("nvmlDeviceGetPowerUsage") {
		if mw, ret := handle.GetPowerUsage(); ret == nvml.SUCCESS {
			watts := float64(mw) / 1000
			s.Power = &watts
		}
	}
	if has("nvmlDeviceGetUtilizationRates") {
		if u, ret := handle.GetUtilizationRates(); ret == nvml.SUCCESS {
			percent := int(u.Gpu)
			s.Utilization = &percent
		}
	}
	return s, nil
}
