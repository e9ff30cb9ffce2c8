package plugin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"ration/check/expect"
	"ration/internal/job"
	kubeslices "ration/kube/slices"
)

// Two claims of one container are refused, since only one would count; two claims of two containers are not.
func TestTwoClaimsOfOnePod(t *testing.T) {
	for _, same := range []bool{true, false} {
		one, two := "claim1", "claim2"
		uses := func(names ...string) (out corev1.ResourceRequirements) {
			for _, name := range names {
				out.Claims = append(out.Claims, corev1.ResourceClaim{Name: name})
			}
			return out
		}
		containers := []corev1.Container{{Name: "a", Resources: uses("one")}, {Name: "b", Resources: uses("two")}}
		if same {
			containers = []corev1.Container{{Name: "a", Resources: uses("one", "two")}}
		}
		c := newCluster(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: "pod-uid"}, Spec: corev1.PodSpec{Containers: containers,
			ResourceClaims: []corev1.PodResourceClaim{{Name: "one", ResourceClaimName: &one}, {Name: "two", ResourceClaimName: &two}}}})
		c.start()
		first, second := newClaim(c, 1, "1Gi"), newClaim(c, 2, "1Gi")
		c.add(first, second)
		for range 2 { // the kubelet tries again
			got := c.prepare(first, second)
			expect.Equal(t, got[string(first.UID)].Error, "")
			expect.Equal(t, strings.Contains(got[string(second.UID)].Error, "a container can be in one ration"), same, got[string(second.UID)].Error)
		}
		c.unprepare(first, second)
	}
}

// As long as a pod cannot be read, its claims are refused: its container might use two. This is also so for the last
// of many pods that share a claim.
func TestPodThatCannotBeRead(t *testing.T) {
	shared, own := "claim1", "claim2"
	container := corev1.Container{Name: "a", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "one"}, {Name: "two"}}}}
	c := newCluster(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: "pod-uid"}, Spec: corev1.PodSpec{Containers: []corev1.Container{container},
		ResourceClaims: []corev1.PodResourceClaim{{Name: "one", ResourceClaimName: &shared}, {Name: "two", ResourceClaimName: &own}}}})
	fails := true
	c.client.PrependReactor("get", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return fails && a.(clienttesting.GetAction).GetName() == "pod", nil, context.DeadlineExceeded
	})
	c.start()
	first, second := newClaim(c, 1, "1Gi"), newClaim(c, 2, "1Gi")
	for i := range 2 * job.MaxPods { // all but the last are gone
		gone := resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: fmt.Sprint("p", i), UID: types.UID(fmt.Sprint("u", i))}
		first.Status.ReservedFor = slices.Insert(first.Status.ReservedFor, i, gone)
	}
	c.add(first, second)
	got := c.prepare(first, second)
	for _, claim := range []*resourceapi.ResourceClaim{first, second} {
		expect.True(t, strings.Contains(got[string(claim.UID)].Error, "reading pod pod"), got[string(claim.UID)].Error)
	}
	expect.Equal(t, c.records(), 0, "claims are prepared")
	fails = false
	got = c.prepare(first, second)
	expect.Equal(t, got[string(first.UID)].Error, "")
	expect.True(t, strings.Contains(got[string(second.UID)].Error, "a container can be in one ration"), got[string(second.UID)].Error)
	c.unprepare(first, second)
}

// With sharing: Request a container that names two requests of a claim, or the whole claim, is
// refused, since only one ration would count; containers that name one each are not.
func TestTwoRequestsOfOneContainer(t *testing.T) {
	uses := func(name string, requests ...string) (out corev1.Container) {
		out.Name = name
		for _, r := range requests {
			out.Resources.Claims = append(out.Resources.Claims, corev1.ResourceClaim{Name: "gpu", Request: r})
		}
		return out
	}
	for what, test := range map[string]struct {
		containers []corev1.Container
		sharing    string
		refused    bool
	}{
		"one each":              {[]corev1.Container{uses("a", "gpu"), uses("b", "other")}, `,"sharing":"Request"`, false},
		"two":                   {[]corev1.Container{uses("a", "gpu", "other")}, `,"sharing":"Request"`, true},
		"all":                   {[]corev1.Container{uses("a", "gpu"), uses("b", "")}, `,"sharing":"Request"`, true},
		"one and all":           {[]corev1.Container{uses("a", "gpu", "")}, `,"sharing":"Request"`, true},
		"two of one ration":     {[]corev1.Container{uses("a", "gpu", "other")}, "", false},
		"none, and one of them": {[]corev1.Container{{Name: "a"}, uses("b", "other")}, `,"sharing":"Request"`, false},
	} {
		t.Run(what, func(t *testing.T) {
			name := "claim1"
			c := newCluster(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: "pod-uid"},
				Spec: corev1.PodSpec{Containers: test.containers, ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}}}})
			c.start()
			own := newClaim(c, 1, "1Gi")
			second := newClaim(c, 2, "1Gi").Status.Allocation.Devices.Results[0]
			second.Request = "other"
			own.Status.Allocation.Devices.Results = append(own.Status.Allocation.Devices.Results, second)
			own.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{Source: resourceapi.AllocationConfigSourceClaim,
				DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: kubeslices.Driver,
					Parameters: runtime.RawExtension{Raw: []byte(`{"apiVersion":"gpu.ration/v1","kind":"RationConfig"` + test.sharing + `}`)}}}}}
			c.add(own)
			for range 2 { // the kubelet tries again
				got := c.prepare(own)[string(own.UID)].Error
				expect.Equal(t, strings.Contains(got, "a container can be in one ration"), test.refused, got)
				expect.Equal(t, got == "", !test.refused, got)
			}
			c.unprepare(own)
		})
	}
}

// The containers of extended resources are those that the scheduler names for its claim.
func TestExtendedResources(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}, {Name: "b"}, {Name: "c"}}},
		Status: corev1.PodStatus{ExtendedResourceClaimStatus: &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "made", RequestMappings: []corev1.ContainerExtendedResourceRequest{
			{ContainerName: "a", ResourceName: "nvidia.com/gpu", RequestName: "container-0-request-0"},
			{ContainerName: "b", ResourceName: "nvidia.com/gpu", RequestName: "container-1-request-0"},
			{ContainerName: "a", ResourceName: "example.com/gpu", RequestName: "container-0-request-1"}}}}}
	got := containersOf(pod, "made")
	expect.Must(t, len(got) == 2 && got[0].Name == "a" && got[1].Name == "b", got)
	expect.True(t, slices.Equal(got[0].Requests, []string{"container-0-request-0", "container-0-request-1"}) && slices.Equal(got[1].Requests, []string{"container-1-request-0"}), got)
	expect.Equal(t, len(containersOf(pod, "another")), 0)
}

// Containers that each ask for GPUs of their own have a ration each, unless one of them has the GPUs of several.
func TestExtendedResourcesOfTwoContainers(t *testing.T) {
	const first, second = "container-0-request-0", "container-1-request-0"
	mapping := func(container, request string) corev1.ContainerExtendedResourceRequest {
		return corev1.ContainerExtendedResourceRequest{ContainerName: container, ResourceName: "nvidia.com/gpu", RequestName: request}
	}
	for what, test := range map[string]struct {
		mappings []corev1.ContainerExtendedResourceRequest
		driver   string // of the second request
		class    string
		rations  int
	}{
		"one each":                 {[]corev1.ContainerExtendedResourceRequest{mapping("a", first), mapping("b", second)}, kubeslices.Driver, "", 2},
		"an init container's":      {[]corev1.ContainerExtendedResourceRequest{mapping("a", first), mapping("b", second), mapping("init", first)}, kubeslices.Driver, "", 2},
		"an init container's two":  {[]corev1.ContainerExtendedResourceRequest{mapping("a", first), mapping("b", second), mapping("init", first), mapping("init", second)}, kubeslices.Driver, "", 1},
		"of another driver":        {[]corev1.ContainerExtendedResourceRequest{mapping("a", first), mapping("a", second)}, "gpu.example.com", "", 1},
		"as the device class says": {[]corev1.ContainerExtendedResourceRequest{mapping("a", first), mapping("b", second)}, kubeslices.Driver, "Claim", 1},
	} {
		t.Run(what, func(t *testing.T) {
			c := newCluster(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: "pod-uid"},
				Status: corev1.PodStatus{ExtendedResourceClaimStatus: &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "claim1", RequestMappings: test.mappings}}})
			c.start()
			own := twice(c, newClaim(c, 1, "1Gi"))
			own.Annotations = map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"}
			results := own.Status.Allocation.Devices.Results
			results[0].Request, results[1].Request, results[1].Driver = first, second, test.driver
			if test.class != "" {
				own.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{Source: resourceapi.AllocationConfigSourceClass,
					DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: kubeslices.Driver,
						Parameters: runtime.RawExtension{Raw: []byte(`{"apiVersion":"gpu.ration/v1","kind":"RationConfig","sharing":"` + test.class + `"}`)}}}}}
			}
			c.add(own)
			for range 2 { // the kubelet tries again
				r := c.prepare(own)[string(own.UID)]
				expect.Must(t, r.Error == "", r.Error)
				rations := map[string]bool{}
				for _, d := range r.Devices {
					rations[strings.Join(d.CdiDeviceIds, " ")] = true
				}
				expect.Equal(t, len(rations), test.rations, r.Devices)
			}
			c.unprepare(own)
		})
	}
}
