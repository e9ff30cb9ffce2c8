package simnode

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"ration/check/expect"
	"ration/kube/slices"
)

// booksOf returns the kubelet of one node with one GPU, and functions that start and end a pod.
func booksOf(t *testing.T) (k *Kubelets, start func(pod, claim, memory string), end func(pod string)) {
	gpus := GPUs("n", 1, 80<<30)
	k = &Kubelets{pods: cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil), nodes: map[string]*node{"n": newNode("n", gpus)}}
	pods := map[string]*corev1.Pod{}
	start = func(name, claim, memory string) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name, UID: types.UID("pod-" + name)}, Spec: corev1.PodSpec{NodeName: "n"}}
		pods[name] = pod
		expect.OK(t, k.pods.Add(pod))
		k.enter(k.nodes["n"], pod, &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: claim, UID: types.UID("claim-" + claim)},
			Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{{Driver: slices.Driver, Pool: "n", Device: gpus[0].Name(),
					ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{slices.Memory: resource.MustParse(memory)}}}}}}})
	}
	end = func(name string) {
		expect.OK(t, k.pods.Delete(pods[name]))
		k.release(pods[name])
	}
	return k, start, end
}

// used returns how many bytes the claims of running pods use, on all devices of all nodes.
func (k *Kubelets) used() (sum int64) {
	for _, n := range k.nodes {
		for _, used := range n.used {
			sum += used[slices.Memory]
		}
	}
	return sum
}

// A claim counts once for all of its pods, and until the last of them has gone.
func TestBooks(t *testing.T) {
	k, start, end := booksOf(t)
	start("a", "shared", "50Gi")
	start("b", "shared", "50Gi")
	start("c", "other", "30Gi")
	expect.Equal(t, k.used(), 80<<30, "are used")
	end("a")
	expect.Equal(t, k.used(), 80<<30, "are used after the first pod of two")
	end("b")
	end("c")
	expect.Equal(t, k.used(), 0, "are used by nothing")
	expect.Equal(t, k.Faults(), nil)
}

// A byte more than there is is seen, for ever.
func TestOverbooked(t *testing.T) {
	k, start, end := booksOf(t)
	start("a", "a", "80Gi")
	start("b", "b", "1")
	end("b")
	err := k.Faults()
	expect.True(t, err != nil && strings.Contains(err.Error(), "85899345921 of 85899345920"), "faults", err)
}
