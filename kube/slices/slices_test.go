package slices

import (
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"ration/check/expect"
)

// The API server takes 64 devices with taints in a slice. A machine with more MIG devices has more slices.
func TestResourcesOfManyDevices(t *testing.T) {
	for devices, want := range map[int][]int{0: {0}, 56: {56}, 64: {64}, 112: {64, 48}} {
		var lengths []int
		for _, s := range (Options{}).Resources("n", make([]GPU, devices)).Pools["n"].Slices {
			lengths = append(lengths, len(s.Devices))
		}
		expect.Equal(t, fmt.Sprint(lengths), fmt.Sprint(want), devices, "devices")
	}
}

func TestAttributes(t *testing.T) {
	g := GPU{Index: 3, UUID: "GPU-00112233-4455-6677-8899-AABBCCDDEEFF", Model: "NVIDIA H200", Capability: [2]int{9, 0}, DriverVersion: "580.82.07", CUDA: 13010, Memory: 143771 << 20,
		Location: Location{PCI: "0000:3b:00.0", Root: "pci0000:3a", NUMA: "1"}}
	d := Options{}.Device(g)
	if want := "gpu-00112233-4455-6677-8899-aabbccddeeff"; d.Name != want {
		t.Errorf("name %s, want %s", d.Name, want)
	}
	for name, want := range map[string]string{"uuid": g.UUID, "model": "NVIDIA H200", "architecture": "Hopper",
		"resource.kubernetes.io/pciBusID": "0000:3b:00.0", "resource.kubernetes.io/pcieRoot": "pci0000:3a"} {
		a := d.Attributes[resourceapi.QualifiedName(name)]
		expect.True(t, a.StringValue != nil && *a.StringValue == want, name, a.StringValue, want)
	}
	expect.True(t, d.Attributes[NUMANode].IntValue != nil && *d.Attributes[NUMANode].IntValue == 1, d.Attributes[NUMANode])
	for _, unknown := range []string{"", "-1"} { // the kernel says -1 on machines with one memory node
		g.Location = Location{NUMA: unknown}
		for name := range (Options{}).Device(g).Attributes {
			expect.True(t, name != NUMANode && !strings.HasPrefix(string(name), "resource.kubernetes.io/"), name)
		}
	}
	for name, want := range map[string]string{"driverVersion": "580.82.7", "cudaDriverVersion": "13.1.0", "computeCapability": "9.0.0"} {
		a := d.Attributes[resourceapi.QualifiedName(name)]
		expect.True(t, a.VersionValue != nil && *a.VersionValue == want, name, a.VersionValue, want)
	}
}
