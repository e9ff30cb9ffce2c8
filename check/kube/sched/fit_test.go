package sched

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ration/check/expect"
	"ration/kube/slices"
)

// has fails the test unless a claim has so much of one device.
func (w *world) has(claim string, name resourceapi.QualifiedName, amount int64) (device string) {
	w.Helper()
	allocation := w.claim(claim).Status.Allocation
	expect.Must(w, allocation != nil && len(allocation.Devices.Results) == 1, "claim", claim, "has", allocation, "not one device")
	result := allocation.Devices.Results[0]
	quantity := result.ConsumedCapacity[name]
	expect.Must(w, quantity.Value() == amount, "claim", claim, "has", result.ConsumedCapacity, amount, "of", name)
	return result.Device
}

// Of 80 GiB, 10 and 50 leave 20: 30 more do not fit, 20 do, and then not a byte does. What is given back is
// handed out again.
func TestMemory(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.ask("ten", want{memory: "10Gi"})
	w.runs("ten")
	w.ask("fifty", want{memory: "50Gi"})
	w.runs("fifty")
	w.ask("thirty", want{memory: "30Gi"})
	why := w.refused("thirty")
	expect.True(t, strings.Contains(why, "cannot allocate all claims"), "refused for another reason", why)
	w.ask("twenty", want{memory: "20Gi"})
	w.runs("twenty")
	w.ask("one", want{memory: "1"})
	w.refused("one")
	for name, amount := range map[string]int64{"ten": 10, "fifty": 50, "twenty": 20} {
		w.has(name, slices.Memory, amount*gib)
	}
	w.deletePod("fifty")
	w.runs("thirty")
	w.runs("one")
	w.has("one", slices.Memory, slices.LeastMemory)
}

// A request is rounded up to what can be handed out, and one that says nothing of memory is for all of a device.
func TestRounding(t *testing.T) {
	w := newWorld(t, 1, 3)
	for _, c := range []struct {
		name   string
		wanted want
		memory int64
	}{
		{"odd", want{memory: "1234567891"}, (1234567891 + slices.Step - 1) / slices.Step * slices.Step},
		{"fraction", want{memory: "1.5Gi"}, 3 * gib / 2},
		{"decimal", want{memory: "10G"}, (10_000_000_000 + slices.Step - 1) / slices.Step * slices.Step},
		{"small", want{memory: "10"}, slices.LeastMemory},
		{"all", want{compute: "10"}, 80 * gib},
	} {
		w.ask(c.name, c.wanted)
		w.runs(c.name)
		w.has(c.name, slices.Memory, c.memory)
	}
	w.ask("large", want{memory: "81Gi"})
	w.refused("large")
}

// The shares of a device are handed out to a hundred per cent, whatever memory is free.
func TestCompute(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.ask("a", want{memory: "1Gi", compute: "40"})
	w.runs("a")
	w.ask("b", want{memory: "1Gi", compute: "50"})
	w.runs("b")
	w.ask("c", want{memory: "1Gi", compute: "11"})
	w.refused("c")
	w.ask("none", want{memory: "1Gi"})
	w.runs("none")
	w.has("none", slices.Compute, 0)
	w.ask("rest", want{memory: "1Gi", compute: "10"})
	w.runs("rest")
	w.has("rest", slices.Compute, 10)
	w.ask("over", want{memory: "1Gi", compute: "101"})
	w.refused("over")
	w.deletePod("a")
	w.runs("c")
}

// Two pods that share a claim share its ration, on one node.
func TestShared(t *testing.T) {
	w := newWorld(t, 2, 1)
	w.must(w.makeClaim("both", want{memory: "60Gi"}))
	for _, name := range []string{"one", "two"} {
		w.must(w.makePod(w.podFor(name, "both")))
	}
	one, two := w.runs("one"), w.runs("two")
	expect.Equal(t, one, two, "the nodes of one and two")
	expect.Equal(t, len(w.claim("both").Status.ReservedFor), 2, "pods, for which the claim is reserved")
	w.ask("twenty", want{memory: "20Gi"})
	w.runs("twenty")
	w.deletePod("one")
	w.gone("one")
	w.ask("other", want{memory: "61Gi"}) // on the other node
	w.runs("other")
	w.ask("second", want{memory: "61Gi"}) // the claim is still in use
	w.refused("second")
	w.deletePod("two")
	w.deletePod("twenty")
	w.runs("second")
}

func (w *world) gone(pod string) {
	w.Helper()
	w.eventually("pod "+pod+" to go", func() error {
		_, err := control.Client.CoreV1().Pods(w.name).Get(w.ctx, pod, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there (%v)", err)
	})
}

// A claim for two GPUs that says so gets two, from a template too, and fits nowhere where there is only one.
func TestTwoGPUs(t *testing.T) {
	w := newWorld(t, 1, 1)
	request := want{memory: "10Gi"}.request()
	request.Exactly.AllocationMode, request.Exactly.Count = resourceapi.DeviceAllocationModeExactCount, 2
	distinct := resourceapi.FullyQualifiedName(slices.Driver + "/" + string(slices.UUID))
	_, err := control.Client.ResourceV1().ResourceClaimTemplates(w.name).Create(w.ctx, &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: "two"},
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests:    []resourceapi.DeviceRequest{request},
			Constraints: []resourceapi.DeviceConstraint{{DistinctAttribute: &distinct}},
		}}}}, metav1.CreateOptions{})
	w.must(err)
	pod := w.podFor("pod", "")
	template := "two"
	pod.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "gpu", ResourceClaimTemplateName: &template}
	w.must(w.makePod(pod))
	w.refused("pod")
	w.addNode(w.name+"-pair", 2)
	expect.Equal(t, w.runs("pod"), w.name+"-pair", "it runs on")
	results := w.claim(*w.pod("pod").Status.ResourceClaimStatuses[0].ResourceClaimName).Status.Allocation.Devices.Results
	expect.True(t, len(results) == 2 && results[0].Device != results[1].Device, "it has", results)
	claim := *w.pod("pod").Status.ResourceClaimStatuses[0].ResourceClaimName
	w.deletePod("pod")
	w.claimGone(claim) // a claim that was made for a pod goes with it
}

func (w *world) claimGone(name string) {
	w.Helper()
	w.eventually("claim "+name+" to go", func() error {
		_, err := control.Client.ResourceV1().ResourceClaims(w.name).Get(w.ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there (%v)", err)
	})
}
