package nvidia

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Sick returns which of the GPUs with these UUIDs do not work, and why. NVML does not find them any
// more, or they do not respond, for example because they have fallen off the bus. NVML is open only
// during the call, because the driver cannot be replaced while it is open.
func (d Driver) Sick(uuids []string) map[string]string {
	library, err := d.NVML()
	if err != nil {
		return allSick(uuids, err.Error())
	}
	starting.Lock()
	defer starting.Unlock()
	return sick(nvml.New(nvml.WithLibraryPath(library)), uuids)
}

func sick(library nvml.Interface, uuids []string) map[string]string {
	if ret := library.Init(); ret != nvml.SUCCESS {
		return allSick(uuids, fmt.Sprintf("starting NVML: %v (try nvidia-smi on the node)", ret))
	}
	defer func() { _ = library.Shutdown() }()
	out := map[string]string{}
	for _, uuid := range uuids {
		device, ret := library.DeviceGetHandleByUUID(uuid)
		if ret == nvml.SUCCESS {
			_, ret = device.GetMemoryInfo()
		}
		if ret != nvml.SUCCESS {
			out[uuid] = fmt.Sprintf("asking GPU %s for its memory: %v (try nvidia-smi on the node)", uuid, ret)
		}
	}
	return out
}

func allSick(uuids []string, why string) map[string]string {
	out := map[string]string{}
	for _, uuid := range uuids {
		out[uuid] = why
	}
	return out
}
