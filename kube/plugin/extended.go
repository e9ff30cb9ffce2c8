package plugin

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"ration/kube/claim"
	"ration/kube/node"
	"ration/kube/slices"
)

// The scheduler makes one claim for all extended resources of a pod, such as nvidia.com/gpu: 1, with a
// request for each container. The pod's status says which containers use which requests, and the
// kubelet gives a container the devices of its own.

// ownRations is the config of a claim whose requests are rations of their own.
var ownRations = []byte(`{"apiVersion":"` + claim.ConfigVersion + `","kind":"` + claim.ConfigKind + `","sharing":"` + claim.ShareByRequest + `"}`)

// perContainer returns a claim, with sharing: Request if the scheduler has made it for several
// containers: each asked for GPUs of its own. If one of them uses two requests, as an init container
// may that has the GPUs of several others, they all share the claim, since a container can be in one
// ration. A config of the device class goes first.
func (p *Plugin) perContainer(c *resourceapi.ResourceClaim) (*resourceapi.ResourceClaim, error) {
	if c.Annotations[resourceapi.ExtendedResourceClaimAnnotation] != "true" || c.Status.Allocation == nil || len(c.Status.ReservedFor) != 1 || !p.Pods {
		return c, nil
	}
	requests := map[string]bool{} // those for devices of this driver
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.Driver == slices.Driver {
			requests[r.Request] = true
		}
	}
	if len(requests) < 2 {
		return c, nil
	}
	ctx, cancel := context.WithTimeout(p.running, podsWithin)
	defer cancel()
	reserved := c.Status.ReservedFor[0]
	pod, err := p.Client.CoreV1().Pods(c.Namespace).Get(ctx, reserved.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("asking which containers of pod %s/%s use which GPUs: %w", c.Namespace, reserved.Name, err)
	}
	s := pod.Status.ExtendedResourceClaimStatus
	if pod.UID != reserved.UID || s == nil || s.ResourceClaimName != c.Name {
		return c, nil // somebody else made it, or its pod is gone
	}
	for _, container := range extendedContainersOf(s) {
		own := 0
		for _, r := range container.Requests {
			if requests[r] {
				own++
			}
		}
		if own > 1 {
			return c, nil
		}
	}
	c = c.DeepCopy()
	config := resourceapi.DeviceAllocationConfiguration{Source: resourceapi.AllocationConfigSourceClass, DeviceConfiguration: resourceapi.DeviceConfiguration{
		Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: slices.Driver, Parameters: runtime.RawExtension{Raw: ownRations}}}}
	devices := &c.Status.Allocation.Devices
	devices.Config = append([]resourceapi.DeviceAllocationConfiguration{config}, devices.Config...)
	return c, nil
}

// extendedContainersOf returns the containers of a claim that the scheduler has made for the extended
// resources of a pod.
func extendedContainersOf(s *corev1.PodExtendedResourceClaimStatus) (out []node.Container) {
	at := map[string]int{}
	for _, m := range s.RequestMappings {
		i, ok := at[m.ContainerName]
		if !ok {
			i, at[m.ContainerName] = len(out), len(out)
			out = append(out, node.Container{Name: m.ContainerName})
		}
		out[i].Requests = append(out[i].Requests, m.RequestName)
	}
	return out
}
