package nvidia

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/embedded"
)

// NVIDIA's library finds the MIG devices of the stand-in driver, and that they work.
func TestMIGDevices(t *testing.T) {
	if err := embedded.FakeGPU.Built(); err != nil {
		t.Skip(err)
	}
	folder, err := embedded.FakeGPU.Unpack()
	expect.OK(t, err)
	root := t.TempDir()
	expect.OK(t, os.MkdirAll(filepath.Join(root, "usr"), 0o755))
	expect.OK(t, os.Symlink(folder, filepath.Join(root, "usr/lib")))
	t.Setenv("FAKEGPU", "h100migx9")
	t.Setenv("FAKEGPU_STATE", filepath.Join(root, "machine"))
	t.Setenv("FAKEGPU_QUIET", "1")
	d := Driver{Root: root}
	found, err := d.Devices()
	expect.OK(t, err)
	// The first MIG device of each of the two GPUs has its number; the others follow.
	expect.Must(t, len(found.Devices) == 9, found.Devices)
	var uuids []string
	for i, dev := range found.Devices {
		uuids = append(uuids, dev.UUID)
		second := i == 1 || i == 8
		expect.True(t, dev.Index == i && strings.HasPrefix(dev.UUID, "MIG-") && dev.Total == 9984<<20 && !dev.MIG && dev.Capability == [2]int{9, 0}, dev)
		expect.Equal(t, dev.Parent != found.Devices[0].Parent, second, "of the second GPU:", dev)
	}
	sick, _ := d.Sick(uuids)
	expect.Equal(t, len(sick), 0)
	sick, _ = d.Sick(append(uuids, "MIG-of-another-machine"))
	expect.Equal(t, len(sick), 1)
	users, err := d.Users(uuids)
	expect.True(t, err == nil && len(users) == 9, users, err)
}

// withMinors lets the calling test see a file of minor numbers below /proc, as the driver has it on a machine with MIG
// devices. The test's thread ends with it.
func withMinors(t *testing.T, minors string) {
	t.Helper()
	runtime.LockOSThread() // and never unlock it
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		t.Skipf("making a mount namespace: %v", err)
	}
	expect.OK(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	if err := unix.Mount("minors", "/proc/driver", "tmpfs", 0, ""); err != nil {
		t.Skipf("mounting on /proc/driver: %v", err)
	}
	expect.OK(t, os.Mkdir("/proc/driver/nvidia-caps", 0o755))
	expect.OK(t, os.WriteFile("/proc/driver/nvidia-caps/mig-minors", []byte(minors), 0o444))
}

// divide divides a GPU of NVIDIA's mock, and returns the UUIDs of its MIG devices.
func divide(t *testing.T, library *server.Server, gpu *server.Device, into int) (uuids []string) {
	t.Helper()
	ok := func(ret nvml.Return) { t.Helper(); expect.Must(t, ret == nvml.SUCCESS, ret) }
	// What the mock leaves out.
	gpu.IsMigDeviceHandleFunc = func() (bool, nvml.Return) { return false, nvml.SUCCESS }
	instances, parts := map[int]nvml.GpuInstance{}, map[string]nvml.Device{}
	gpu.GetGpuInstanceByIdFunc = func(id int) (nvml.GpuInstance, nvml.Return) { return instances[id], nvml.SUCCESS }
	whole := library.DeviceGetHandleByUUIDFunc
	library.DeviceGetHandleByUUIDFunc = func(uuid string) (nvml.Device, nvml.Return) {
		if part, ok := parts[uuid]; ok {
			return part, nvml.SUCCESS
		}
		return whole(uuid)
	}
	for i := range into {
		profile, ret := gpu.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_1_SLICE)
		ok(ret)
		instance, ret := gpu.CreateGpuInstance(&profile)
		ok(ret)
		info, ret := instance.GetInfo()
		ok(ret)
		instances[int(info.Id)] = instance
		computeProfile, ret := instance.GetComputeInstanceProfileInfo(nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		ok(ret)
		compute, ret := instance.CreateComputeInstance(&computeProfile)
		ok(ret)
		instance.(*server.GpuInstance).GetComputeInstanceByIdFunc = func(int) (nvml.ComputeInstance, nvml.Return) { return compute, nvml.SUCCESS }
		computeInfo, ret := compute.GetInfo()
		ok(ret)
		uuid := fmt.Sprintf("MIG-00000000-0000-0000-0000-%012d", i)
		uuids = append(uuids, uuid)
		parts[uuid] = &mock.Device{
			IsMigDeviceHandleFunc:                  func() (bool, nvml.Return) { return true, nvml.SUCCESS },
			GetDeviceHandleFromMigDeviceHandleFunc: func() (nvml.Device, nvml.Return) { return gpu, nvml.SUCCESS },
			GetUUIDFunc:                            func() (string, nvml.Return) { return uuid, nvml.SUCCESS },
			GetIndexFunc:                           func() (int, nvml.Return) { return i, nvml.SUCCESS },
			GetGpuInstanceIdFunc:                   func() (int, nvml.Return) { return int(info.Id), nvml.SUCCESS },
			GetComputeInstanceIdFunc:               func() (int, nvml.Return) { return int(computeInfo.Id), nvml.SUCCESS },
			GetAttributesFunc: func() (nvml.DeviceAttributes, nvml.Return) {
				return nvml.DeviceAttributes{MemorySizeMB: profile.MemorySizeMB}, nvml.SUCCESS
			},
		}
	}
	return uuids
}

// A container with a MIG device gets the node of its GPU, and the two nodes that give access to the MIG device; no node of
// another MIG device, which would give access to it.
func TestEditsOfMIGDevices(t *testing.T) {
	library := dgxa100.New()
	version, _ := library.SystemGetDriverVersion()
	d := Driver{Root: driverRoot(t, version), HostRoot: "/", Hook: "/usr/bin/nvidia-cdi-hook"}
	caps := filepath.Join(d.Root, "dev/nvidia-caps")
	expect.OK(t, os.Mkdir(caps, 0o755))
	var minors strings.Builder
	for i := range 2 {
		fmt.Fprintf(&minors, "gpu1/gi%d/access %d\ngpu1/gi%d/ci0/access %d\n", i, 100+10*i, i, 101+10*i)
		for k := range 2 {
			minor := 100 + 10*i + k
			expect.OK(t, unix.Mknod(filepath.Join(caps, fmt.Sprintf("nvidia-cap%d", minor)), unix.S_IFCHR|0o444, int(unix.Mkdev(510, uint32(minor)))))
		}
	}
	withMinors(t, minors.String())
	uuids := divide(t, library, library.Devices[1].(*server.Device), 2)
	for want, uuids := range map[string][]string{"nvidia1 cap110 cap111": uuids[1:], "nvidia1 cap100 cap101 cap110 cap111": uuids} {
		edits, err := d.edits(library, uuids)
		expect.OK(t, err)
		var nodes []string
		for _, n := range edits.DeviceNodes {
			nodes = append(nodes, n.Path)
			expect.True(t, n.HostPath == "" || n.HostPath == n.Path, n.HostPath, "is not the machine's path")
		}
		for name := range strings.FieldsSeq("nvidia0 nvidia1 nvidia2 cap100 cap101 cap110 cap111") {
			path := "/dev/" + strings.Replace(name, "cap", "nvidia-caps/nvidia-cap", 1)
			expect.Equal(t, slices.Contains(nodes, path), slices.Contains(strings.Fields(want), name), path, "is in", nodes)
		}
	}
	_, err := d.edits(library, []string{"MIG-00000000-0000-0000-0000-000000000009"})
	expect.True(t, err != nil, "a MIG device that is not there has device nodes")
	expect.OK(t, os.Remove(filepath.Join(caps, "nvidia-cap111")))
	_, err = d.edits(library, uuids[:1])
	expect.OK(t, err)
	_, err = d.edits(library, uuids)
	expect.True(t, err != nil && strings.Contains(err.Error(), "of the two in /dev/nvidia-caps there are [/dev/nvidia-caps/nvidia-cap110]"), "no program finds the device", err)
}
