package nvidia

import (
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Users returns the processes that hold memory of the GPUs with these UUIDs, by UUID and by their PIDs
// on the host, and how many bytes. A GPU whose processes NVML does not list is left out; the error then
// says why, beside what is known of the others. NVML is open only during the call, as in Sick.
func (d Driver) Users(uuids []string) (map[string]map[int]uint64, error) {
	library, err := d.NVML()
	if err != nil {
		return nil, err
	}
	starting.Lock()
	defer starting.Unlock()
	return users(nvml.New(nvml.WithLibraryPath(library)), uuids)
}

func users(library nvml.Interface, uuids []string) (map[string]map[int]uint64, error) {
	if ret := library.Init(); ret != nvml.SUCCESS {
		return nil, fmt.Errorf("starting NVML: %v (try nvidia-smi on the node)", ret)
	}
	defer func() { _ = library.Shutdown() }()
	out := map[string]map[int]uint64{}
	var errs []error
	for _, uuid := range uuids {
		device, ret := library.DeviceGetHandleByUUID(uuid)
		if ret != nvml.SUCCESS {
			continue // Sick reports it
		}
		processes, ret := device.GetComputeRunningProcesses()
		if ret != nvml.SUCCESS {
			errs = append(errs, fmt.Errorf("asking GPU %s for its processes: %v (try nvidia-smi on the node)", uuid, ret))
			continue
		}
		out[uuid] = map[int]uint64{}
		for _, p := range processes {
			if p.UsedGpuMemory != noValue {
				out[uuid][int(p.Pid)] += p.UsedGpuMemory
			}
		}
	}
	return out, errors.Join(errs...)
}

// noValue is what NVML returns if it does not know the memory of a process.
const noValue = ^uint64(0)
