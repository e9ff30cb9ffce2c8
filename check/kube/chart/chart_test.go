package chart

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	admission "k8s.io/api/admissionregistration/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	rbac "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"ration/check/expect"
)

const folder = "../../../kube/chart"

// typed converts objects to the types of the Kubernetes API. A field that the API does not have fails the test.
func typed(t *testing.T, objects []*unstructured.Unstructured) (out []runtime.Object) {
	t.Helper()
	for _, o := range objects {
		object, err := scheme.Scheme.New(o.GroupVersionKind())
		if err == nil {
			err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, object, true)
		}
		expect.OK(t, err, o.GetKind(), o.GetName())
		out = append(out, object)
	}
	return out
}

func render(t *testing.T, values map[string]any) []runtime.Object {
	t.Helper()
	objects, err := Render(folder, values)
	expect.OK(t, err)
	return typed(t, objects)
}

func find[T runtime.Object](objects []runtime.Object) (out []T) {
	for _, o := range objects {
		if own, ok := o.(T); ok {
			out = append(out, own)
		}
	}
	return out
}

// rights returns what the roles of a chart allow, as "resource verb".
func rights(objects []runtime.Object) (out []string) {
	var rules []rbac.PolicyRule
	for _, role := range find[*rbac.ClusterRole](objects) {
		rules = append(rules, role.Rules...)
	}
	for _, role := range find[*rbac.Role](objects) {
		rules = append(rules, role.Rules...)
	}
	for _, rule := range rules {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				out = append(out, resource+" "+verb)
			}
		}
	}
	return out
}

func TestChart(t *testing.T) {
	objects := render(t, nil)
	daemons := find[*apps.DaemonSet](objects)
	expect.Must(t, len(daemons) == 1 && len(find[*resourceapi.DeviceClass](objects)) == 1 && len(find[*admission.ValidatingAdmissionPolicy](objects)) == 4,
		"got", len(objects), "objects")
	version, err := os.ReadFile("../../../VERSION")
	expect.OK(t, err)
	container := daemons[0].Spec.Template.Spec.Containers[0]
	expect.True(t, slices.Contains(container.Args, "--driver-root=/driver-root") && container.Image == "ration-kubelet-plugin:"+strings.TrimSpace(string(version)),
		"got", container.Image, container.Args)
	about, err := loader.Load(folder)
	expect.OK(t, err)
	expect.True(t, strings.Contains(about.Metadata.Annotations["artifacthub.io/images"], "image: "+container.Image+"\n"), "Artifact Hub shows another image than", container.Image)
	pod := daemons[0].Spec.Template.Spec
	expect.True(t, pod.HostPID, "the plugin does not see the processes of jobs")
	// The folders that the plugin shares with the machine have the same path in both.
	shared := map[string]bool{}
	for _, m := range container.VolumeMounts {
		for _, v := range pod.Volumes {
			if v.Name == m.Name && v.HostPath != nil && v.HostPath.Path == m.MountPath && !m.ReadOnly {
				shared[m.MountPath] = true
			}
		}
	}
	for _, path := range []string{"/run/ration", "/var/lib/ration", "/var/run/cdi", "/var/lib/kubelet/plugins/gpu.ration", "/var/lib/kubelet/plugins_registry"} {
		expect.True(t, shared[path], path, "is not the machine's")
	}
	// An update keeps the old plugin until the new one is ready.
	update := daemons[0].Spec.UpdateStrategy.RollingUpdate
	expect.Must(t, update != nil && update.MaxUnavailable.IntValue() == 0 && update.MaxSurge.IntValue() == 1, update)
	probe := container.ReadinessProbe
	expect.Must(t, probe != nil && probe.HTTPGet != nil, "there is no readiness probe")
	expect.True(t, probe.HTTPGet.Path == "/readyz" && slices.ContainsFunc(container.Ports, func(p core.ContainerPort) bool {
		return p.Name == probe.HTTPGet.Port.StrVal && slices.Contains(container.Args, fmt.Sprintf("--ready-address=:%d", p.ContainerPort))
	}), "the probe asks", probe.HTTPGet, container.Ports)
	for _, m := range container.VolumeMounts {
		expect.True(t, m.MountPath != "/run/ration" || m.MountPropagation != nil && *m.MountPropagation == "Bidirectional",
			"the container engine would not see the regions of jobs")
	}
	// The plugin has only the rights that it uses.
	used := []string{"resourceclaims get", "resourceslices list", "resourceslices watch", "resourceslices create", "resourceslices update", "resourceslices delete", "nodes get", "nodes list", "nodes watch", "pods get", "events create"}
	for _, right := range rights(objects) {
		expect.True(t, slices.Contains(used, right), "the plugin has the right", right)
	}
}

func TestValues(t *testing.T) {
	objects := render(t, map[string]any{"fakeGPU": "h200x2", "defaultMemory": "8Gi", "readPods": false, "eventsPeriod": "0s", "policies": map[string]any{"maxMemory": "40Gi", "maxCompute": 50},
		"api": map[string]any{"qps": 5}, "readyPort": 99, "taints": map[string]any{"outside": "NoExecute"}, "deviceClass": map[string]any{"extendedResourceName": "nvidia.com/gpu"}})
	class := find[*resourceapi.DeviceClass](objects)[0]
	expect.True(t, class.Spec.ExtendedResourceName != nil && *class.Spec.ExtendedResourceName == "nvidia.com/gpu", class.Spec)
	args := find[*apps.DaemonSet](objects)[0].Spec.Template.Spec.Containers[0].Args
	expect.True(t, slices.Contains(args, "--fake-gpu=h200x2") && !slices.Contains(args, "--driver-root=/driver-root"), args)
	for _, want := range []string{"--max-memory=40Gi", "--max-compute=50", "--max-priority=normal", "--api-qps=5", "--api-burst=100", "--ready-address=:99", "--taint-unhealthy=NoSchedule", "--taint-outside=NoExecute"} {
		expect.True(t, slices.Contains(args, want), args)
	}
	has := rights(objects)
	expect.True(t, !slices.Contains(has, "pods get") && !slices.Contains(has, "events create"), "the plugin has the rights", has)
	bare := render(t, map[string]any{"policies": map[string]any{"create": false}, "deviceClass": map[string]any{"create": false}})
	expect.True(t, len(find[*admission.ValidatingAdmissionPolicy](bare)) == 0 && len(find[*resourceapi.DeviceClass](bare)) == 0,
		len(bare), "objects")
	for _, values := range []map[string]any{
		{"fakegpu": "h200"}, {"driverRoot": "run"}, {"defaultMemory": "8 GB"}, {"policies": map[string]any{"maxCompute": 101}}, {"policies": map[string]any{"maxPriority": "low"}}, {"eventsPeriod": "often"}, {"taints": map[string]any{"outside": "Evict"}}, {"image": map[string]any{"repository": ""}},
	} {
		_, err := Render(folder, values)
		expect.True(t, err != nil, values, "is allowed")
	}
}

// A bound of namespaces takes the right to list claims, and ConfigMaps in the plugin's own namespace.
func TestNamespaceMemory(t *testing.T) {
	objects := render(t, map[string]any{"policies": map[string]any{"maxNamespaceMemory": "160Gi"}})
	container := find[*apps.DaemonSet](objects)[0].Spec.Template.Spec.Containers[0]
	expect.True(t, slices.Contains(container.Args, "--max-namespace-memory=160Gi"), container.Args)
	expect.True(t, slices.ContainsFunc(container.Env, func(e core.EnvVar) bool {
		return e.Name == "NAMESPACE" && e.ValueFrom.FieldRef.FieldPath == "metadata.namespace"
	}), container.Env)
	has := rights(objects)
	for _, right := range []string{"resourceclaims get", "resourceclaims list", "configmaps get", "configmaps create", "configmaps update"} {
		expect.True(t, slices.Contains(has, right), "the plugin has only the rights", has)
	}
	role, binding := find[*rbac.Role](objects)[0], find[*rbac.RoleBinding](objects)[0]
	expect.True(t, role.Namespace == Namespace && binding.Namespace == Namespace && binding.RoleRef.Name == role.Name, role, binding)
	for _, role := range find[*rbac.ClusterRole](objects) {
		for _, rule := range role.Rules {
			expect.True(t, !slices.Contains(rule.Resources, "configmaps"), "the plugin writes ConfigMaps of all namespaces")
		}
	}
}

// The PodMonitor selects the plugin's pods and the port that the plugin listens on.
func TestPodMonitor(t *testing.T) {
	objects, err := Render(folder, map[string]any{"podMonitor": map[string]any{"create": true, "labels": map[string]any{"release": "prometheus"}}})
	expect.OK(t, err)
	var daemon, monitor *unstructured.Unstructured
	for _, o := range objects {
		switch o.GetKind() {
		case "DaemonSet":
			daemon = o
		case "PodMonitor":
			monitor = o
		}
	}
	expect.Must(t, daemon != nil && monitor != nil, len(objects), "objects")
	own, _, _ := unstructured.NestedStringMap(daemon.Object, "spec", "template", "metadata", "labels")
	selects, _, _ := unstructured.NestedStringMap(monitor.Object, "spec", "selector", "matchLabels")
	expect.True(t, len(selects) > 0, "it selects all pods")
	for name, value := range selects {
		expect.Equal(t, own[name], value, name)
	}
	expect.Equal(t, monitor.GetLabels()["release"], "prometheus")
	endpoints, _, _ := unstructured.NestedSlice(monitor.Object, "spec", "podMetricsEndpoints")
	expect.Must(t, len(endpoints) == 1, endpoints)
	port := endpoints[0].(map[string]any)["port"]
	ports := find[*apps.DaemonSet](typed(t, []*unstructured.Unstructured{daemon}))[0].Spec.Template.Spec.Containers[0].Ports
	expect.True(t, slices.ContainsFunc(ports, func(p core.ContainerPort) bool { return p.Name == port }), port, ports)
}

// The NetworkPolicy is for the plugin's pods: they are asked at the port of their probe and ask the API server.
func TestNetworkPolicy(t *testing.T) {
	expect.True(t, len(find[*networking.NetworkPolicy](render(t, nil))) == 0, "there is one unasked")
	from := []any{map[string]any{"namespaceSelector": map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": "monitoring"}}}}
	objects := render(t, map[string]any{"networkPolicy": map[string]any{"create": true, "from": from, "apiPorts": []any{6443}}})
	policies, daemons := find[*networking.NetworkPolicy](objects), find[*apps.DaemonSet](objects)
	expect.Must(t, len(policies) == 1 && len(daemons) == 1, len(objects), "objects")
	spec, pod := policies[0].Spec, daemons[0].Spec.Template
	expect.Equal(t, fmt.Sprint(spec.PodSelector.MatchLabels), fmt.Sprint(pod.Labels))
	expect.True(t, policies[0].Namespace == Namespace && slices.Contains(spec.PolicyTypes, networking.PolicyTypeIngress) && slices.Contains(spec.PolicyTypes, networking.PolicyTypeEgress), spec)
	expect.Must(t, len(spec.Ingress) == 1 && len(spec.Ingress[0].Ports) == 1 && len(spec.Egress) == 1, spec)
	expect.Equal(t, spec.Ingress[0].Ports[0].Port.String(), pod.Spec.Containers[0].Ports[0].Name)
	expect.True(t, len(spec.Ingress[0].From) == 1 && spec.Ingress[0].From[0].NamespaceSelector != nil, spec.Ingress[0].From)
	expect.True(t, len(spec.Egress[0].Ports) == 1 && spec.Egress[0].Ports[0].Port.IntValue() == 6443 && len(spec.Egress[0].To) == 0, spec.Egress[0])
}

// The plugin's pods have the operator's annotations and labels, and keep those by which the DaemonSet finds them.
func TestPodMetadata(t *testing.T) {
	daemon := find[*apps.DaemonSet](render(t, map[string]any{"podAnnotations": map[string]any{"sidecar.istio.io/inject": "false"},
		"podLabels": map[string]any{"team": "gpu", "app.kubernetes.io/name": "other"}}))[0]
	pod := daemon.Spec.Template
	expect.True(t, pod.Annotations["sidecar.istio.io/inject"] == "false" && pod.Labels["team"] == "gpu", pod.ObjectMeta)
	for name, value := range daemon.Spec.Selector.MatchLabels {
		expect.Equal(t, pod.Labels[name], value, name)
	}
	_, team := daemon.Spec.Selector.MatchLabels["team"]
	expect.True(t, !team, "an upgrade could not change the labels")
	_, err := Render(folder, map[string]any{"podAnnotations": map[string]any{"a": 1}})
	expect.True(t, err != nil, "an annotation that is no text is allowed")
}

// With a digest the node runs exactly that image.
func TestImageDigest(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0a", 32)
	objects := render(t, map[string]any{"image": map[string]any{"repository": "registry.example/plugin", "tag": "old", "digest": digest}})
	expect.Equal(t, find[*apps.DaemonSet](objects)[0].Spec.Template.Spec.Containers[0].Image, "registry.example/plugin@"+digest)
	_, err := Render(folder, map[string]any{"image": map[string]any{"digest": "sha256:1"}})
	expect.True(t, err != nil, "a digest that is none is allowed")
}

func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../../../kube/examples/*.yaml")
	expect.Must(t, err == nil && len(files) >= 3, files, err)
	for _, file := range files {
		objects, err := ReadFile(file)
		expect.True(t, err == nil && len(typed(t, objects)) >= 2, file, "has", len(objects), "objects", err)
	}
}

// Helm loads the file of make chart as the chart, with its version; and everybody who makes it gets the same bytes.
func TestPackage(t *testing.T) {
	const version = "0.2.0-dev.7+gabc"
	pack := func(umask, zone string) (path string, text []byte) {
		dist := t.TempDir()
		cmd := exec.Command("sh", "-c", "umask "+umask+" && exec ../../../deploy/chart "+version)
		cmd.Env = append(os.Environ(), "DIST="+dist, "TZ="+zone, "SOURCE_DATE_EPOCH=1000000000")
		out, err := cmd.CombinedOutput()
		expect.OK(t, err, string(out))
		path = filepath.Join(dist, "ration-chart-"+version+".tgz")
		text, err = os.ReadFile(path)
		expect.OK(t, err)
		return path, text
	}
	path, first := pack("022", "UTC")
	_, second := pack("077", "Asia/Tokyo")
	expect.True(t, bytes.Equal(first, second), "two users make two files")
	z, err := gzip.NewReader(bytes.NewReader(first))
	expect.OK(t, err)
	header, err := tar.NewReader(z).Next()
	expect.OK(t, err)
	expect.Equal(t, header.ModTime.Unix(), 1000000000, "not the commit's time")
	names := func(from string) (out []string) {
		c, err := loader.Load(from)
		expect.OK(t, err)
		expect.Equal(t, c.Metadata.Version == version, from == path, c.Metadata.Version)
		for _, f := range c.Raw {
			out = append(out, f.Name)
		}
		slices.Sort(out)
		return out
	}
	expect.Equal(t, strings.Join(names(path), " "), strings.Join(names(folder), " "))
	packed, err := Render(path, nil)
	expect.OK(t, err)
	plain, err := Render(folder, nil)
	expect.OK(t, err)
	expect.True(t, reflect.DeepEqual(packed, plain), "the file renders other objects")
}
