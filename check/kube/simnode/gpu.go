package simnode

import (
	"context"
	"crypto/sha256"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"ration/kube/slices"
)

// GPUs returns the GPUs of a node that has so many, with so much memory each.
func GPUs(node string, n int, memory uint64) (gpus []slices.GPU) {
	for i := range n {
		h := sha256.Sum256(fmt.Appendf(nil, "%s/%d", node, i))
		gpus = append(gpus, slices.GPU{Index: i, UUID: fmt.Sprintf("GPU-%x-%x-%x-%x-%x", h[:4], h[4:6], h[6:8], h[8:10], h[10:16]),
			Model: "NVIDIA H100 80GB HBM3", Capability: [2]int{9, 0}, DriverVersion: "580.82.07", CUDA: 13000, Memory: memory})
	}
	return gpus
}

// Publish publishes the GPUs of a node until the controller is stopped, by the same code as the kubelet
// plugin and with the same contents. Errors go to onError.
func Publish(ctx context.Context, client kubernetes.Interface, node string, gpus []slices.GPU, onError func(error)) (*resourceslice.Controller, error) {
	owner, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("publishing the GPUs of %s: %w", node, err)
	}
	resources := slices.Options{}.Resources(node, gpus)
	return resourceslice.StartController(ctx, resourceslice.Options{
		DriverName: slices.Driver,
		KubeClient: client,
		Owner:      &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: node, UID: owner.UID},
		Resources:  &resources,
		ErrorHandler: func(_ context.Context, err error, msg string) {
			onError(fmt.Errorf("publishing the GPUs of %s: %s: %w", node, msg, err))
		},
	})
}
