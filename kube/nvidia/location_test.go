package nvidia

import (
	"os"
	"path/filepath"
	"testing"

	"ration/check/expect"
	"ration/kube/slices"
)

// A GPU behind a bridge has the root of its PCIe hierarchy; one that the kernel does not know has its bus ID only.
func TestLocate(t *testing.T) {
	root := t.TempDir()
	device := filepath.Join(root, "sys/devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0")
	expect.OK(t, os.MkdirAll(device, 0o755))
	expect.OK(t, os.WriteFile(filepath.Join(device, "numa_node"), []byte("1\n"), 0o644))
	devices := filepath.Join(root, "sys/bus/pci/devices")
	expect.OK(t, os.MkdirAll(devices, 0o755))
	expect.OK(t, os.Symlink("../../../devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0", filepath.Join(devices, "0000:3b:00.0")))
	gpus := []slices.GPU{{UUID: "GPU-a"}, {UUID: "GPU-b"}, {UUID: "GPU-c"}}
	locate(gpus, map[string]string{"0000:3b:00": "GPU-a", "0000:ff:00": "GPU-b"}, filepath.Join(root, "sys"))
	expect.Equal(t, gpus[0].Location, slices.Location{PCI: "0000:3b:00.0", Root: "pci0000:3a", NUMA: "1"})
	expect.Equal(t, gpus[1].Location, slices.Location{PCI: "0000:ff:00.0"})
	expect.Equal(t, gpus[2].Location, slices.Location{})
}
