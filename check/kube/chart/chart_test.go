package chart

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	admission "k8s.io/api/admissionregistration/v1"
	apps "k8s.io/api/apps/v1"
	rbac "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
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
		if err != nil {
			t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
		}
		out = append(out, object)
	}
	return out
}

func render(t *testing.T, values map[string]any) []runtime.Object {
	t.Helper()
	objects, err := Render(folder, values)
	if err != nil {
		t.Fatal(err)
	}
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
	for _, role := range find[*rbac.ClusterRole](objects) {
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					out = append(out, resource+" "+verb)
				}
			}
		}
	}
	return out
}

func TestChart(t *testing.T) {
	objects := render(t, nil)
	daemons := find[*apps.DaemonSet](objects)
	if len(daemons) != 1 || len(find[*resourceapi.DeviceClass](objects)) != 1 || len(find[*admission.ValidatingAdmissionPolicy](objects)) != 3 {
		t.Fatalf("got %d objects", len(objects))
	}
	version, err := os.ReadFile("../../../VERSION")
	if err != nil {
		t.Fatal(err)
	}
	container := daemons[0].Spec.Template.Spec.Containers[0]
	if !slices.Contains(container.Args, "--driver-root=/driver-root") || container.Image != "ration-kubelet-plugin:"+strings.TrimSpace(string(version)) {
		t.Errorf("got %s %q", container.Image, container.Args)
	}
	for _, m := range container.VolumeMounts {
		if m.MountPath == "/run/ration" && (m.MountPropagation == nil || *m.MountPropagation != "Bidirectional") {
			t.Error("the container engine would not see the regions of jobs")
		}
	}
	// The plugin has only the rights that it uses.
	used := []string{"resourceclaims get", "resourceslices list", "resourceslices watch", "resourceslices create", "resourceslices update", "resourceslices delete", "nodes get", "pods get", "events create"}
	for _, right := range rights(objects) {
		if !slices.Contains(used, right) {
			t.Errorf("the plugin has the right %s", right)
		}
	}
}

func TestValues(t *testing.T) {
	objects := render(t, map[string]any{"fakeGPU": "h200x2", "readPods": false, "eventsPeriod": "0s", "policies": map[string]any{"maxMemory": "40Gi", "maxCompute": 50}})
	args := find[*apps.DaemonSet](objects)[0].Spec.Template.Spec.Containers[0].Args
	if !slices.Contains(args, "--fake-gpu=h200x2") || slices.Contains(args, "--driver-root=/driver-root") {
		t.Errorf("got %q", args)
	}
	if has := rights(objects); slices.Contains(has, "pods get") || slices.Contains(has, "events create") {
		t.Errorf("the plugin has the rights %q", has)
	}
	bare := render(t, map[string]any{"policies": map[string]any{"create": false}, "deviceClass": map[string]any{"create": false}})
	if len(find[*admission.ValidatingAdmissionPolicy](bare)) != 0 || len(find[*resourceapi.DeviceClass](bare)) != 0 {
		t.Errorf("got %d objects", len(bare))
	}
	for _, values := range []map[string]any{
		{"fakegpu": "h200"}, {"driverRoot": "run"}, {"defaultMemory": "8 GB"}, {"policies": map[string]any{"maxCompute": 101}}, {"eventsPeriod": "often"}, {"image": map[string]any{"repository": ""}},
	} {
		if _, err := Render(folder, values); err == nil {
			t.Errorf("%v is allowed", values)
		}
	}
}

func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../../../kube/examples/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		objects, err := ReadFile(file)
		if err != nil || len(typed(t, objects)) < 2 {
			t.Errorf("%s has %d objects, %v", file, len(objects), err)
		}
	}
}
