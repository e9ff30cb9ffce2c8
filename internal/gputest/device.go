package gputest

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"ration/internal/gpu"
)

// AnyDevice leaves the choice of a device to CUDA_VISIBLE_DEVICES.
const AnyDevice = -1

// choose finds the device to test, by NVML's number: the one that was asked for, or else
// the first in CUDA_VISIBLE_DEVICES, where that is one NVML knows, or else the first of
// all.
func choose(devices []gpu.Device, asked int, visible string) (int, error) {
	if len(devices) == 0 {
		return 0, fmt.Errorf("looking for a GPU: the driver has none")
	}
	index := asked
	first, _, _ := strings.Cut(visible, ",")
	first = strings.TrimSpace(first)
	if asked == AnyDevice {
		index = 0
		for _, d := range devices {
			// CUDA takes the beginning of a UUID for it, too.
			if first == strconv.Itoa(d.Index) || strings.HasPrefix(first, "GPU-") && strings.HasPrefix(d.UUID, first) {
				index = d.Index
				break
			}
		}
	}
	switch {
	case asked == AnyDevice && strings.HasPrefix(first, "MIG-"):
		return 0, fmt.Errorf("choosing device %s: parts of a GPU in MIG mode are not known to this test (-device chooses another)", first)
	case index < 0 || index >= len(devices):
		return 0, fmt.Errorf("choosing device %d: there are %d (nvidia-smi -L lists them)", index, len(devices))
	case devices[index].MIG:
		return 0, fmt.Errorf("choosing device %d: it is in MIG mode, and its parts are not known to this test (-device chooses another)", index)
	}
	return index, nil
}

// visible are the variables that show programs the tested device and no other. It is
// named by its number, in the order that NVML numbers devices in: a UUID would have the
// library start NVML to learn the number, and the cost of that be measured.
func (m *Machine) visible() []string {
	return []string{"CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=" + strconv.Itoa(m.device)}
}

// processor is one that programs may be pinned to: not the first, where there is
// another, since that one often serves interrupts.
func processor() (cpu int, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return 0, fmt.Errorf("asking for the processors of this process: %w", err)
	}
	for cpu := 1; cpu < len(set)*strconv.IntSize; cpu++ {
		if set.IsSet(cpu) {
			return cpu, nil
		}
	}
	return 0, nil
}
