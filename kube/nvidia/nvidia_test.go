package nvidia

import (
	"encoding/binary"
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

	"ration/check/expect"
)

// driverRoot makes a folder that looks like the root of a machine with a driver and two GPUs.
func driverRoot(t *testing.T, version string) string {
	t.Helper()
	root := t.TempDir()
	libraries := filepath.Join(root, "usr/lib/x86_64-linux-gnu")
	for _, folder := range []string{libraries, filepath.Join(root, "dev"), filepath.Join(root, "usr/bin")} {
		expect.OK(t, os.MkdirAll(folder, 0o755))
	}
	for _, name := range []string{"libcuda.so", "libnvidia-ml.so", "libnvidia-ptxjitcompiler.so"} {
		err := errors.Join(os.WriteFile(filepath.Join(libraries, name+"."+version), nil, 0o644), os.Symlink(name+"."+version, filepath.Join(libraries, name+".1")))
		expect.OK(t, err)
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
	path, err := d.NVML()
	expect.True(t, err == nil && filepath.Base(path) == "libnvidia-ml.so."+version, path, err)
	var uuids []string
	for i := range 2 {
		device, _ := library.DeviceGetHandleByIndex(i)
		uuid, _ := device.GetUUID()
		uuids = append(uuids, uuid)
	}
	edits, err := d.edits(library, uuids)
	expect.OK(t, err)
	var nodes []string
	for _, n := range edits.DeviceNodes {
		nodes = append(nodes, n.Path)
		expect.True(t, n.HostPath == "" || !strings.HasPrefix(n.HostPath, d.Root), n.HostPath, "is this process's path")
	}
	for _, want := range []string{"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"} {
		expect.True(t, slices.Contains(nodes, want), want, "is missing in", nodes)
	}
	expect.True(t, !slices.Contains(nodes, "/dev/nvidia2"), "another GPU is in the container")
	found := false
	for _, m := range edits.Mounts {
		found = found || m.ContainerPath == "/usr/lib/x86_64-linux-gnu/libcuda.so."+version && m.HostPath == m.ContainerPath
	}
	expect.True(t, found, "libcuda is missing in", edits.Mounts)
	_, err = d.edits(library, []string{"GPU-00000000-0000-0000-0000-000000000000"})
	expect.True(t, err != nil, "a GPU that is not there has device nodes")
}

func TestNoDriver(t *testing.T) {
	d := Driver{Root: t.TempDir(), HostRoot: "/"}
	err := d.Check()
	expect.True(t, errors.Is(err, ErrLibrary) && strings.Contains(err.Error(), "--driver-root"), err)
}

// A GPU that does not answer is sick, and so is one that is gone; the others are not. Without NVML all are.
func TestSick(t *testing.T) {
	library := dgxa100.New()
	device := func(i int) *server.Device { return library.Devices[i].(*server.Device) }
	uuids := []string{device(0).UUID, device(1).UUID, "GPU-is-gone"}
	device(1).GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_GPU_IS_LOST }
	library.LookupSymbolFunc = func(string) error { return errors.New("an older driver") }
	got, noReset := check(library, uuids)
	_, ok := got[uuids[0]]
	expect.True(t, !ok && len(got) == 2 && strings.Contains(got[uuids[1]], uuids[1]) && got[uuids[2]] != "" && len(noReset) == 0, got, noReset)
	library.InitFunc = func() nvml.Return { return nvml.ERROR_DRIVER_NOT_LOADED }
	got, _ = check(library, uuids)
	expect.True(t, len(got) == 3 && strings.Contains(got[uuids[0]], "starting NVML"), got)
	got, _ = (Driver{Root: t.TempDir()}).Sick(uuids)
	expect.True(t, len(got) == 3 && strings.Contains(got[uuids[0]], ErrLibrary.Error()), got)
}

// A GPU for which the driver asks for a reset is sick, and so is one with a broken row without a spare. One that
// replaces a row at its next reset is not.
func TestSickByTheDriver(t *testing.T) {
	library := dgxa100.New()
	device := func(i int) *server.Device { return library.Devices[i].(*server.Device) }
	var uuids []string
	for i, state := range []struct {
		pending, failed bool
		action          nvml.DeviceGpuRecoveryAction
		supported       nvml.Return
	}{
		{true, false, nvml.GPU_RECOVERY_ACTION_NONE, nvml.SUCCESS},
		{false, true, nvml.GPU_RECOVERY_ACTION_NONE, nvml.SUCCESS},
		{false, false, nvml.GPU_RECOVERY_ACTION_NODE_REBOOT, nvml.SUCCESS},
		{false, false, nvml.GPU_RECOVERY_ACTION_NONE, nvml.ERROR_NOT_SUPPORTED},
	} {
		uuids = append(uuids, device(i).UUID)
		device(i).GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 1, 1, state.pending, state.failed, nvml.SUCCESS }
		device(i).GetFieldValuesFunc = func(values []nvml.FieldValue) nvml.Return {
			expect.True(t, len(values) == 1 && values[0].FieldId == nvml.FI_DEV_GET_GPU_RECOVERY_ACTION, values)
			values[0].NvmlReturn = uint32(state.supported)
			binary.NativeEndian.PutUint32(values[0].Value[:], uint32(state.action))
			return nvml.SUCCESS
		}
	}
	got, noReset := check(library, uuids)
	expect.True(t, len(got) == 2 && strings.Contains(got[uuids[1]], "broken row") && strings.Contains(got[uuids[2]], "reboot"), got)
	expect.True(t, len(noReset) == 2 && noReset[uuids[0]] && noReset[uuids[1]], noReset)
}

// Each GPU has its processes; memory that NVML does not know is not invented. A GPU that does not answer is left out,
// with an error, and the others are there.
func TestUsers(t *testing.T) {
	library := dgxa100.New()
	device := func(i int) *server.Device { return library.Devices[i].(*server.Device) }
	for i, processes := range [][]nvml.ProcessInfo{{{Pid: 7, UsedGpuMemory: 1 << 30}, {Pid: 8, UsedGpuMemory: noValue}}, {{Pid: 7, UsedGpuMemory: 2 << 30}}} {
		device(i).GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return processes, nvml.SUCCESS }
	}
	got, err := users(library, []string{device(0).UUID, device(1).UUID, "GPU-none"})
	expect.OK(t, err)
	one, two := got[device(0).UUID], got[device(1).UUID]
	expect.True(t, len(got) == 2 && len(one) == 1 && one[7] == 1<<30 && len(two) == 1 && two[7] == 2<<30, got)
	device(1).GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.ERROR_GPU_IS_LOST }
	got, err = users(library, []string{device(1).UUID, device(0).UUID})
	_, known := got[device(1).UUID]
	expect.True(t, err != nil && strings.Contains(err.Error(), device(1).UUID) && !known, "a GPU that does not answer has no processes", got, err)
	expect.Equal(t, got[device(0).UUID][7], 1<<30)
}
