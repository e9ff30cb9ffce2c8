package gputest

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"ration/internal/gpu"
)

// AnyDevice selects the device by CUDA_VISIBLE_DEVICES.
const AnyDevice = -1

// chooseDevice returns NVML's number of the device to test: the requested one, or else
// the first in CUDA_VISIBLE_DEVICES if NVML knows it, or else the first of all.
func chooseDevice(devices []gpu.Device, asked int, visible string) (int, error) {
	if len(devices) == 0 {
		return 0, fmt.Errorf("looking for a GPU: the driver has none")
	}
	index := asked
	first, _, _ := strings.Cut(visible, ",")
	first = strings.TrimSpace(first)
	if asked == AnyDevice {
		index = 0
		for _, d := range devices {
			// CUDA accepts the beginning of a UUID, too.
			if first == strconv.Itoa(d.Index) || strings.HasPrefix(first, "GPU-") && strings.HasPrefix(d.UUID, first) {
				index = d.Index
				break
			}
		}
	}
	switch {
	case asked == AnyDevice && strings.HasPrefix(first, "MIG-"):
		return 0, fmt.Errorf("choosing device %s: parts of a GPU in MIG mode cannot be tested (-device chooses another)", first)
	case index < 0 || index >= len(devices):
		return 0, fmt.Errorf("choosing device %d: there are %d (nvidia-smi -L lists them)", index, len(devices))
	case devices[index].MIG:
		return 0, fmt.Errorf("choosing device %d: it is in MIG mode, whose parts cannot be tested (-device chooses another)", index)
	}
	return index, nil
}

// visible returns the variables that show programs the tested device and no other. They
// name it by its number, in NVML's order: for a UUID the library would have to start
// NVML, and the measures would include that.
func (m *Machine) visible() []string {
	return []string{"CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=" + strconv.Itoa(m.device)}
}

// pinCPU returns a CPU to pin programs to: not the first if there is another, since the
// first often serves interrupts.
func pinCPU() (cpu int, err error) {
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
