package nvidia

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Sick returns which of the GPUs with these UUIDs do not work, and why. NVML does not find them any
// more, they do not respond, for example because they have fallen off the bus, or the driver says so.
// noReset has those for which the driver says that they need no reset; older drivers do not say it.
// NVML is open only during the call, because the driver cannot be replaced while it is open.
func (d Driver) Sick(uuids []string) (sick map[string]string, noReset map[string]bool) {
	library, err := d.NVML()
	if err != nil {
		return allSick(uuids, err.Error()), nil
	}
	starting.Lock()
	defer starting.Unlock()
	return check(nvml.New(nvml.WithLibraryPath(library)), uuids)
}

func check(library nvml.Interface, uuids []string) (sick map[string]string, noReset map[string]bool) {
	if ret := library.Init(); ret != nvml.SUCCESS {
		return allSick(uuids, fmt.Sprintf("starting NVML: %v (try nvidia-smi on the node)", ret)), nil
	}
	defer func() { _ = library.Shutdown() }()
	sick, noReset = map[string]string{}, map[string]bool{}
	for _, uuid := range uuids {
		device, ret := library.DeviceGetHandleByUUID(uuid)
		if ret == nvml.SUCCESS {
			_, ret = device.GetMemoryInfo()
		}
		if ret != nvml.SUCCESS {
			sick[uuid] = fmt.Sprintf("asking GPU %s for its memory: %v (try nvidia-smi on the node)", uuid, ret)
			continue
		}
		if strings.HasPrefix(uuid, "MIG-") {
			if device, ret = device.GetDeviceHandleFromMigDeviceHandle(); ret != nvml.SUCCESS {
				continue
			}
		}
		if why := unremapped(library, device); why != "" {
			sick[uuid] = why
		}
		switch action, known := recoveryAction(library, device); {
		case known && action == nvml.GPU_RECOVERY_ACTION_NONE:
			noReset[uuid] = true
		case known:
			sick[uuid] = "the driver asks for a reset of the GPU or a reboot (see GPU Recovery Action of nvidia-smi -q on the node)"
		}
	}
	return sick, noReset
}

// has reports whether a driver's NVML has a function. A call of one that it does not have ends the process.
func has(library nvml.Interface, function string) bool {
	return library.Extensions().LookupSymbol(function) == nil
}

// unremapped returns why a GPU does not work if a broken row of its memory could not be replaced by a spare one. A
// GPU that replaces one at its next reset works until then.
func unremapped(library nvml.Interface, device nvml.Device) string {
	if !has(library, "nvmlDeviceGetRemappedRows") {
		return ""
	}
	if _, _, _, failed, ret := device.GetRemappedRows(); ret == nvml.SUCCESS && failed {
		return "the GPU's memory has a broken row without a spare one (see Remapped Rows of nvidia-smi -q on the node)"
	}
	return ""
}

// recoveryAction returns what the driver asks for after a fault, if it is known.
func recoveryAction(library nvml.Interface, device nvml.Device) (action nvml.DeviceGpuRecoveryAction, known bool) {
	if !has(library, "nvmlDeviceGetFieldValues") {
		return 0, false
	}
	values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	if ret := device.GetFieldValues(values); ret != nvml.SUCCESS || nvml.Return(values[0].NvmlReturn) != nvml.SUCCESS {
		return 0, false
	}
	return nvml.DeviceGpuRecoveryAction(binary.NativeEndian.Uint32(values[0].Value[:])), true
}

func allSick(uuids []string, why string) map[string]string {
	out := map[string]string{}
	for _, uuid := range uuids {
		out[uuid] = why
	}
	return out
}
