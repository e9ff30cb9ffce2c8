//go:build cgo

package gpu

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"ration/check/expect"
)

// A GPU that does not answer hides no other: these have their numbers, and the driver says why it does not.
func TestFailedDevice(t *testing.T) {
	lost := map[int]bool{1: true}
	library := &mock.Interface{
		SystemGetDriverVersionFunc:     func() (string, nvml.Return) { return "580", nvml.SUCCESS },
		SystemGetCudaDriverVersionFunc: func() (int, nvml.Return) { return 13000, nvml.SUCCESS },
		DeviceGetCountFunc:             func() (int, nvml.Return) { return 3, nvml.SUCCESS },
		ExtensionsFunc: func() nvml.ExtendedInterface {
			return &mock.ExtendedInterface{LookupSymbolFunc: func(string) error { return nvml.ERROR_FUNCTION_NOT_FOUND }}
		},
		DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
			return &mock.Device{
				GetUUIDFunc: func() (string, nvml.Return) { return "GPU-0", nvml.SUCCESS },
				GetNameFunc: func() (string, nvml.Return) { return "H200", nvml.SUCCESS },
				GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) {
					if lost[i] {
						return nvml.Memory{}, nvml.ERROR_GPU_IS_LOST
					}
					return nvml.Memory{Total: 8 << 30}, nvml.SUCCESS
				},
				GetComputeRunningProcessesFunc: func() ([]nvml.ProcessInfo, nvml.Return) {
					return []nvml.ProcessInfo{{Pid: uint32(100 + i), UsedGpuMemory: 1 << 30}}, nvml.SUCCESS
				},
			}, nvml.SUCCESS
		},
	}
	d := &Driver{lib: library}
	expect.OK(t, d.readDevices())
	expect.Must(t, len(d.Devices) == 3, d.Devices)
	expect.True(t, d.Devices[1].Failed != nil && d.Devices[2].Failed == nil && d.Devices[2].Index == 2 && d.Devices[2].Total == 8<<30, d.Devices)
	_, err := d.Status(1)
	expect.True(t, err != nil, "a GPU that has failed has a status")
	_, err = d.Free(1)
	expect.True(t, err != nil, "a GPU that has failed has free memory")
	list, err := d.Processes()
	expect.True(t, err != nil && len(list) == 2 && list[1] == Process{2, 102, 1 << 30}, list, err)
	lost[0], lost[2] = true, true
	expect.True(t, (&Driver{lib: library}).readDevices() != nil, "all have failed, and there is a driver")
}
