package sched

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"ration/check/expect"
	"ration/check/kube/chart"
	"ration/kube/slices"
)

var errNotYet = errors.New("they do not count yet")

// refuses fails the test unless the API server refuses something in these words.
func (w *world) refuses(words string, try func() error) {
	w.Helper()
	err := try()
	expect.True(w, err != nil && strings.Contains(err.Error(), words), err, "want it refused with", words)
}

// slice returns one of a node, with a device of this driver.
func slice(name, node, driver string) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{Driver: driver, NodeName: &node,
		Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1}, Devices: []resourceapi.Device{{Name: "gpu"}}}}
}

// The policies of the chart let nobody ask for what is not theirs to have.
func TestPolicies(t *testing.T) {
	w := newWorld(t, 1, 1) // by the plugin's account, with the chart's rights: that is not refused
	node := w.name + "-0"
	claims := control.Client.ResourceV1().ResourceClaims(w.name)
	claim := func(name string, change func(*resourceapi.DeviceRequest)) error {
		request := want{memory: "1Gi"}.request()
		change(&request)
		_, err := claims.Create(w.ctx, &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{request}}}}, metav1.CreateOptions{})
		return err
	}
	// A policy counts, and ends, once the API server has taken note of it.
	early := func() error {
		err := claim("early", func(r *resourceapi.DeviceRequest) { r.Exactly.Capacity = nil })
		if err == nil {
			w.deleteClaim("early")
		}
		return err
	}
	w.must(install(w.ctx, map[string]any{"policies": map[string]any{"maxMemory": "100Gi", "maxCompute": 90}}))
	w.eventually("the policies", func() error {
		if early() == nil {
			return errNotYet
		}
		return nil
	})
	t.Cleanup(func() { // other tests ask for all they like
		w.must(install(context.Background(), map[string]any{}))
		w.ctx = context.Background()
		w.eventually("the policies to end", early)
	})
	w.refuses("has to say how much memory", func() error {
		return claim("all", func(r *resourceapi.DeviceRequest) { r.Exactly.Capacity = nil })
	})
	w.refuses("more than 100Gi", func() error {
		return claim("large", func(r *resourceapi.DeviceRequest) { *r = want{memory: "101Gi"}.request() })
	})
	w.refuses("more than 100Gi", func() error {
		return claim("twice", func(r *resourceapi.DeviceRequest) {
			*r = want{memory: "51Gi"}.request()
			r.Exactly.Count = 2
		})
	})
	w.refuses("more than 90 per cent", func() error {
		return claim("busy", func(r *resourceapi.DeviceRequest) { *r = want{memory: "1Gi", compute: "91"}.request() })
	})
	w.refuses("more than 100Gi", func() error {
		large := want{memory: "200Gi"}.request().Exactly
		return claim("second", func(r *resourceapi.DeviceRequest) {
			*r = resourceapi.DeviceRequest{Name: "gpu", FirstAvailable: []resourceapi.DeviceSubRequest{
				{Name: "small", DeviceClassName: slices.Driver, Capacity: want{memory: "1Gi"}.request().Exactly.Capacity},
				{Name: "large", DeviceClassName: slices.Driver, Capacity: large.Capacity}}}
		})
	})
	setting := func(parameters string) error {
		_, err := claims.Create(w.ctx, &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "set"}, Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{want{memory: "1Gi"}.request()}, Config: []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
				Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: slices.Driver, Parameters: runtime.RawExtension{Raw: []byte(parameters)}}}}}}}}, metav1.CreateOptions{})
		return err
	}
	const head = `{"apiVersion":"gpu.ration/v1","kind":"RationConfig",`
	w.refuses("and kind RationConfig", func() error { return setting(`{"computeMax":50}`) })
	w.refuses("has only sharing", func() error { return setting(head + `"computMax":50}`) })
	w.refuses("computeMax is", func() error { return setting(head + `"computeMax":900}`) })
	w.refuses("priority is", func() error { return setting(head + `"priority":"urgent"}`) })
	w.must(setting(head + `"sharing":"Request","computeMax":50,"priority":"low","waitAlloc":"30s"}`))
	// Only in a namespace for it does the API server look at a request for admin access at all.
	_, err := control.Client.CoreV1().Namespaces().Patch(w.ctx, chart.Namespace, types.MergePatchType, []byte(`{"metadata":{"labels":{"resource.kubernetes.io/admin-access":"true"}}}`), metav1.PatchOptions{})
	w.must(err)
	w.refuses("admin access", func() error {
		request := want{memory: "1Gi"}.request()
		request.Exactly.AdminAccess = new(true)
		_, err := control.Client.ResourceV1().ResourceClaims(chart.Namespace).Create(w.ctx, &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "admin"},
			Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{request}}}}, metav1.CreateOptions{})
		return err
	})
	w.must(claim("fair", func(*resourceapi.DeviceRequest) {}))

	// The plugin of one node, with a slice of another and of another driver; and somebody else with one of this driver.
	plugin, err := kubernetes.NewForConfig(chart.As(control.Config, node))
	w.must(err)
	publish := func(c kubernetes.Interface, s *resourceapi.ResourceSlice) error {
		_, err := c.ResourceV1().ResourceSlices().Create(w.ctx, s, metav1.CreateOptions{})
		return err
	}
	w.refuses("writes no slices of another node", func() error { return publish(plugin, slice("other-node", "elsewhere", slices.Driver)) })
	w.refuses("writes slices of driver", func() error { return publish(plugin, slice("other-driver", node, "gpu.example.com")) })
	nowhere, err := kubernetes.NewForConfig(chart.As(control.Config, ""))
	w.must(err)
	w.refuses("used from a pod on a node", func() error { return publish(nowhere, slice("nowhere", node, slices.Driver)) })
	kubelet, err := kubernetes.NewForConfig(control.As("system:node:"+node, "system:nodes", "system:authenticated"))
	w.must(err)
	w.refuses("only the ration plugin", func() error { return publish(kubelet, slice("kubelet", node, slices.Driver)) })
	tenant, err := kubernetes.NewForConfig(control.As("tenant", "system:authenticated"))
	w.must(err)
	err = publish(tenant, slice("tenant", node, slices.Driver))
	expect.True(t, apierrors.IsForbidden(err), "a tenant publishes a device", err)
	// The account of the plugin has no other rights.
	_, err = plugin.CoreV1().Secrets(w.name).List(w.ctx, metav1.ListOptions{})
	expect.True(t, apierrors.IsForbidden(err), "the plugin reads secrets", err)
	_, err = plugin.ResourceV1().ResourceClaims(w.name).List(w.ctx, metav1.ListOptions{})
	expect.True(t, apierrors.IsForbidden(err), "the plugin lists claims", err)
	// With a bound for namespaces it lists claims, and writes ConfigMaps in its own.
	w.must(install(w.ctx, map[string]any{"policies": map[string]any{"maxMemory": "100Gi", "maxCompute": 90, "maxNamespaceMemory": "160Gi"}}))
	quota := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "ration-quota-" + w.name}}
	w.eventually("the plugin's rights", func() error {
		_, err := plugin.ResourceV1().ResourceClaims(w.name).List(w.ctx, metav1.ListOptions{})
		return err
	})
	w.eventually("the plugin's ConfigMap", func() error {
		_, err := plugin.CoreV1().ConfigMaps(chart.Namespace).Create(w.ctx, quota, metav1.CreateOptions{})
		return err
	})
	_, err = plugin.CoreV1().ConfigMaps(chart.Namespace).Update(w.ctx, quota, metav1.UpdateOptions{})
	w.must(err)
	_, err = plugin.CoreV1().ConfigMaps(w.name).Create(w.ctx, quota, metav1.CreateOptions{})
	expect.True(t, apierrors.IsForbidden(err), "the plugin writes ConfigMaps of others", err)
}

// Pods with extended resources are placed where claims have a bound, which counts the chart's default for them; and each
// container has a request of its own.
func TestExtendedResources(t *testing.T) {
	w := newWorld(t, 1, 2)
	const name = "ration.example/gpu"
	large := func() error { // is refused as long as the bound counts
		if err := w.makeClaim("large", want{memory: "21Gi"}); err != nil {
			return err
		}
		w.deleteClaim("large")
		return nil
	}
	t.Cleanup(func() {
		w.ctx = context.Background()
		w.must(install(w.ctx, map[string]any{}))
		w.eventually("the bound to end", large)
	})
	w.must(install(w.ctx, map[string]any{"defaultMemory": "8Gi", "policies": map[string]any{"maxMemory": "20Gi"}, "deviceClass": map[string]any{"extendedResourceName": name}}))
	w.eventually("the bound", func() error {
		if large() == nil {
			return errNotYet
		}
		return nil
	})
	one := corev1.ResourceRequirements{Limits: corev1.ResourceList{name: resource.MustParse("1")}}
	w.must(w.makePod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod"}, Spec: corev1.PodSpec{NodeSelector: map[string]string{"test": w.name}, TerminationGracePeriodSeconds: new(int64(1)),
		Containers: []corev1.Container{{Name: "a", Image: "none", Resources: one}, {Name: "b", Image: "none", Resources: one}}}}))
	w.runs("pod")
	s := w.pod("pod").Status.ExtendedResourceClaimStatus
	expect.Must(t, s != nil && len(s.RequestMappings) == 2, s)
	a, b := s.RequestMappings[0], s.RequestMappings[1]
	expect.True(t, a.ContainerName == "a" && b.ContainerName == "b" && a.RequestName != b.RequestName, s.RequestMappings)
	claim := w.claim(s.ResourceClaimName)
	expect.True(t, claim.Annotations[resourceapi.ExtendedResourceClaimAnnotation] == "true" && len(claim.Status.Allocation.Devices.Results) == 2, claim)
}

// The API server takes the examples as they are, and no field of them is unknown to it.
func TestExamples(t *testing.T) {
	w := newWorld(t, 0, 0)
	files, err := filepath.Glob("../../../kube/examples/*.yaml")
	w.must(err)
	expect.Must(t, len(files) != 0, "there are no examples")
	for _, file := range files {
		objects, err := chart.ReadFile(file)
		w.must(err)
		w.must(chart.Apply(w.ctx, control.Config, w.name, objects))
	}
}
