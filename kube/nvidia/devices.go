package nvidia

import "ration/internal/gpu"

// Devices returns what CUDA counts as devices of the machine now, for the limits of jobs. NVML is open only during the
// call, as in Sick.
func (d Driver) Devices() (*gpu.Driver, error) {
	library, err := d.NVML()
	if err != nil {
		return nil, err
	}
	starting.Lock()
	defer starting.Unlock()
	open, err := gpu.Open(library)
	if err != nil {
		return nil, err
	}
	defer open.Close()
	return &gpu.Driver{Version: open.Version, CUDA: open.CUDA, Devices: open.CUDADevices()}, nil // without NVML
}
