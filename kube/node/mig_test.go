package node

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ration/check/expect"
	"ration/kube/claim"
	"ration/kube/slices"
	"ration/machine"
)

// allocated returns a claim of these amounts of memory, in GiB, by the index of the device.
func (n *Node) allocated(order []int, memory map[int]int) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: uid},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}}}
	for _, i := range order {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: "gpu", Driver: slices.Driver, Pool: "n", Device: n.GPUs[i].Name(),
			ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{slices.Memory: *resource.NewQuantity(int64(memory[i])*gib, resource.BinarySI), slices.Compute: resource.MustParse("0")}})
	}
	return c
}

// Of eight GPUs with seven MIG devices each, all 56 are published, and a claim may have any of them, although a job has fewer
// numbers: a container has the devices of its claim and no other, with the limits that the claim has of them.
func TestContainerOfManyMIGDevices(t *testing.T) {
	n := newNode(t)
	n.FakeGPU = "h100migx56"
	all, err := FakeGPUs(n.FakeGPU)
	expect.OK(t, err)
	var left []string
	n.GPUs, left = slices.Publishable(all)
	expect.Must(t, len(n.GPUs) == 56 && len(left) == 0, len(n.GPUs), left)
	memory := map[int]int{0: 2, 15: 2, 16: 3, 55: 4}
	for _, order := range [][]int{{0}, {15}, {16}, {55}, {55, 0, 16}} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			p, err := claim.Read(n.allocated(order, memory), "n", n.GPUs)
			expect.OK(t, err)
			_, err = n.Prepare(p)
			expect.OK(t, err)
			j, err := machine.ReadJob(JobPrefix + uid)
			expect.OK(t, err)
			has := map[string]uint64{}
			for _, d := range j.Devices {
				has[strings.TrimPrefix(d.UUID, "GPU-")] = d.Limit // a region has the digits only
			}
			commands := inContainer(fake+"/fake-train 1g 1g 1g 1g\n") + inContainer(fake+"/fake-smi\n")
			out, err := exec.Command("unshare", "--mount", "sh", "-c", containerScript(t, n.readSpec(t, uid), commands)).CombinedOutput()
			text := string(out)
			t.Logf("%v\n%s", err, text)
			first := order[0] // the program uses that with the lowest number
			for _, i := range order {
				first = min(first, i)
				expect.Equal(t, has[strings.TrimPrefix(n.GPUs[i].UUID, "MIG-")], uint64(memory[i])*gib, "the job has", j.Devices)
			}
			expect.Equal(t, len(j.Devices), len(order), "the job has", j.Devices)
			expect.Equal(t, strings.Count(text, "81559MiB"), len(order), "GPUs of which a part is in the container")
			expect.Equal(t, strings.Count(text, "now has"), memory[first]-1, "the program got")
			expect.True(t, strings.Contains(text, ": CUDA_ERROR_OUT_OF_MEMORY"), "nothing was refused")
			expect.OK(t, n.Unprepare(uid))
		})
	}
}
