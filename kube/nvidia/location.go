package nvidia

import (
	"os"
	"path/filepath"
	"strings"

	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"ration/kube/slices"
)

// Locate sets where GPUs are in the machine. What the kernel does not say stays empty.
func (d Driver) Locate(gpus []slices.GPU) error {
	known, err := d.addresses()
	if err == nil {
		locate(gpus, known, "/sys")
	}
	return err
}

// locate sets the locations of GPUs from their PCI addresses and the files of the kernel in sysfs.
func locate(gpus []slices.GPU, addresses map[string]string, sysfs string) {
	for address, uuid := range addresses {
		for i := range gpus {
			if gpus[i].UUID != uuid && gpus[i].Parent != uuid {
				continue
			}
			at := &gpus[i].Location
			at.PCI = busID(address)
			if a, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(at.PCI, deviceattribute.WithFSFromRoot(sysfs)); err == nil && a.Value.StringValue != nil {
				at.Root = *a.Value.StringValue
			}
			text, _ := os.ReadFile(filepath.Join(sysfs, "bus/pci/devices", at.PCI, "numa_node"))
			at.NUMA = strings.TrimSpace(string(text))
		}
	}
}
