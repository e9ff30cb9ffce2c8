package nvidia

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"golang.org/x/sys/unix"
)

// driverRoot makes a folder that looks like the root of a machine with a driver and two GPUs.
func driverRoot(t *testing.T, version string) string {
	t.Helper()
	root := t.TempDir()
	libraries := filepath.Join(root, "usr/lib/x86_64-linux-gnu")
	for _, folder := range []string{libraries, filepath.Join(root, "dev"), filepath.Join(root, "usr/bin")} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"libcuda.so", "libnvidia-ml.so", "libnvidia-ptxjitcompiler.so"} {
		err := errors.Join(os.WriteFile(filepath.Join(libraries, name+"."+version), nil, 0o644), os.Symlink(name+"."+version, filepath.Join(libraries, name+".1")))
		if err != nil {
			t.Fatal(err)
		}
	}
	for i, name := range []string{"nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"} {
		if err := unix.Mknod(filepath.Join(root, "dev", name), unix.S_IFCHR|0o666, int(unix.Mkdev(195, uint32(i)))); err != nil {
			t.Skipf("making device nodes: %v", err)
		}
	}
	return root
}

// A container gets the device nodes of its GPUs, those of the driver, and the driver's libraries, by
// paths of the machine; and no node of another GPU.
func TestEdits(t *testing.T) {
	library := dgxa100.New()
	for _, device := range library.Devices { // what the mock leaves out
		device.(*server.Device).IsMigDeviceHandleFunc = func() (bool, nvml.Return) { return false, nvml.SUCCESS }
	}
	version, _ := library.SystemGetDriverVersion()
	d := Driver{Root: driverRoot(t, version), HostRoot: "/", Hook: "/usr/bin/nvidia-cdi-hook"}
	if path, err := d.NVML(); err != nil || filepath.Base(path) != "libnvidia-ml.so."+version {
		t.Errorf("got %s, %v", path, err)
	}
	var uuids []string
	for i := range 2 {
		device, _ := library.DeviceGetHandleByIndex(i)
		uuid, _ := device.GetUUID()
		uuids = append(uuids, uuid)
	}
	edits, err := d.edits(library, uuids)
	if err != nil {
		t.Fatal(err)
	}
	var nodes []string
	for _, n := range edits.DeviceNodes {
		nodes = append(nodes, n.Path)
		if n.HostPath != "" && strings.HasPrefix(n.HostPath, d.Root) {
			t.Errorf("%s is this process's path", n.HostPath)
		}
	}
	for _, want := range []string{"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"} {
		if !slices.Contains(nodes, want) {
			t.Errorf("%s is missing in %v", want, nodes)
		}
	}
	if slices.Contains(nodes, "/dev/nvidia2") {
		t.Error("another GPU is in the container")
	}
	found := false
	for _, m := range edits.Mounts {
		found = found || m.ContainerPath == "/usr/lib/x86_64-linux-gnu/libcuda.so."+version && m.HostPath == m.ContainerPath
	}
	if !found {
		t.Errorf("libcuda is missing in %+v", edits.Mounts)
	}
	if _, err := d.edits(library, []string{"GPU-00000000-0000-0000-0000-000000000000"}); err == nil {
		t.Error("a GPU that is not there has device nodes")
	}
}

func TestNoDriver(t *testing.T) {
	d := Driver{Root: t.TempDir(), HostRoot: "/"}
	if err := d.Check(); !errors.Is(err, ErrLibrary) || !strings.Contains(err.Error(), "--driver-root") {
		t.Errorf("got %v", err)
	}
}

// A GPU that does not answer is sick, and so is one that is gone; the others are not. Without NVML all are.
func TestSick(t *testing.T) {
	library := dgxa100.New()
	device := func(i int) *server.Device { return library.Devices[i].(*server.Device) }
	uuids := []string{device(0).UUID, device(1).UUID, "GPU-is-gone"}
	device(1).GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_GPU_IS_LOST }
	got := sick(library, uuids)
	if _, ok := got[uuids[0]]; ok || len(got) != 2 || !strings.Contains(got[uuids[1]], uuids[1]) || got[uuids[2]] == "" {
		t.Errorf("got %v", got)
	}
	library.InitFunc = func() nvml.Return { return nvml.ERROR_DRIVER_NOT_LOADED }
	if got := sick(library, uuids); len(got) != 3 || !strings.Contains(got[uuids[0]], "starting NVML") {
		t.Errorf("got %v", got)
	}
	if got := (Driver{Root: t.TempDir()}).Sick(uuids); len(got) != 3 || !strings.Contains(got[uuids[0]], ErrLibrary.Error()) {
		t.Errorf("got %v", got)
	}
}
