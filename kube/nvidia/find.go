package nvidia

import (
	"k8s.io/klog/v2"

	"ration/internal/gpu"
	"ration/kube/node"
	"ration/kube/slices"
)

// Find returns the GPUs that the machine has now, and the same for the limits of jobs. NVML is open only during the
// call, as in Sick.
func (d Driver) Find() ([]slices.GPU, *gpu.Driver, error) {
	library, err := d.NVML()
	if err != nil {
		return nil, nil, err
	}
	gpus, driver, err := list(library)
	if err != nil {
		return nil, nil, err
	}
	if err := d.Locate(gpus); err != nil {
		klog.Background().Error(err, "Published without their places in the machine")
	}
	return gpus, driver, nil
}

func list(library string) ([]slices.GPU, *gpu.Driver, error) {
	starting.Lock()
	defer starting.Unlock()
	d, err := gpu.Open(library)
	if err != nil {
		return nil, nil, err
	}
	defer d.Close()
	// A copy without NVML: jobs need only the list of devices.
	return node.GPUs(d), &gpu.Driver{Version: d.Version, CUDA: d.CUDA, Devices: d.CUDADevices()}, nil
}
