package node

import (
	"slices"
	"strings"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"

	"ration/check/expect"
)

// The library by which container engines read specs accepts ours, and adds all of it to a container: also
// twice, as the kubelet names the device of a claim once for each of its requests.
func TestEnginesReadTheSpec(t *testing.T) {
	n := newNode(t)
	var asked []string
	n.Hardware = func(uuids []string) (specs.ContainerEdits, error) {
		asked = uuids
		return specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{{Path: "/dev/nvidia0", HostPath: "/dev/null"}}, Env: []string{"NVIDIA_VISIBLE_DEVICES=void"},
			Hooks: []*specs.Hook{{HookName: "createContainer", Path: "/usr/bin/nvidia-cdi-hook", Args: []string{"nvidia-cdi-hook", "update-ldcache"}}}, AdditionalGIDs: []uint32{44}}, nil
	}
	devices, err := n.Prepare(n.plan(uid, gib))
	expect.OK(t, err)
	expect.True(t, slices.Equal(asked, []string{n.GPUs[0].UUID}), "the container would get", asked)
	cache, err := cdi.NewCache(cdi.WithSpecDirs(n.CDI), cdi.WithAutoRefresh(false))
	if err == nil {
		err = cache.Refresh() // what is not valid is an error here
	}
	expect.OK(t, err)
	container := &oci.Spec{}
	missing, err := cache.InjectDevices(container, devices[0].CDI, devices[0].CDI)
	expect.OK(t, err, missing)
	want := n.readSpec(t, uid).Devices[0].ContainerEdits
	expect.True(t, len(container.Mounts) == len(want.Mounts) && len(container.Linux.Devices) == 1,
		"of", len(want.Mounts), "mounts it has", len(container.Mounts), len(container.Linux.Devices), "devices")
	last := map[string]int{}
	for i, m := range container.Mounts {
		last[m.Destination] = i
	}
	expect.True(t, last["/run/ration"] <= last["/run/ration/job/region"], "the folder is mounted over the region")
}

// A driver root that would hide the job is refused.
func TestHardwareThatHidesTheJob(t *testing.T) {
	for _, path := range []string{"/etc/ld.so.preload", "/etc", "/run/ration/job/region", "/run/ration"} {
		n := newNode(t)
		n.Hardware = func([]string) (specs.ContainerEdits, error) {
			return specs.ContainerEdits{Mounts: []*specs.Mount{{HostPath: "/dev/null", ContainerPath: path}}}, nil
		}
		_, err := n.Prepare(n.plan(uid, gib))
		expect.True(t, err != nil && strings.Contains(err.Error(), "where the job has to be"), path, err)
	}
}
