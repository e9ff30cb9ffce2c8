// Package charttest renders the Helm chart, and checks what comes out and the examples against the types
// of the Kubernetes API. It is a module of its own, so that the plugin does not depend on Helm.
package charttest

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	admission "k8s.io/api/admissionregistration/v1"
	apps "k8s.io/api/apps/v1"
	rbac "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

// render renders the chart with values, which its schema has to allow.
func render(t *testing.T, values map[string]any) ([]runtime.Object, error) {
	t.Helper()
	chart, err := loader.Load("../../kube/chart")
	if err != nil {
		t.Fatal(err)
	}
	all, err := chartutil.ToRenderValues(chart, values, chartutil.ReleaseOptions{Name: "r", Namespace: "ration-system"}, nil)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return nil, err
	}
	var out []runtime.Object
	for name, text := range files {
		if strings.HasSuffix(name, ".yaml") {
			out = append(out, decode(t, name, []byte(text))...)
		}
	}
	return out, nil
}

// decode reads a manifest strictly: a field that the API does not have is an error.
func decode(t *testing.T, name string, text []byte) (out []runtime.Object) {
	t.Helper()
	serializer := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{Yaml: true, Strict: true})
	reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(bytes.TrimSpace(stripComments(document))) == 0 {
			continue
		}
		object, _, err := serializer.Decode(document, nil, nil)
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, document)
		}
		out = append(out, object)
	}
}

func stripComments(text []byte) (out []byte) {
	for line := range bytes.Lines(text) {
		if trimmed := bytes.TrimSpace(line); len(trimmed) > 0 && trimmed[0] != '#' && !bytes.Equal(trimmed, []byte("---")) {
			out = append(out, line...)
		}
	}
	return out
}

func find[T runtime.Object](t *testing.T, objects []runtime.Object) (out []T) {
	t.Helper()
	for _, o := range objects {
		if own, ok := o.(T); ok {
			out = append(out, own)
		}
	}
	return out
}

func TestChart(t *testing.T) {
	objects, err := render(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	daemons := find[*apps.DaemonSet](t, objects)
	if len(daemons) != 1 || len(find[*resourceapi.DeviceClass](t, objects)) != 1 || len(find[*admission.ValidatingAdmissionPolicy](t, objects)) != 3 {
		t.Fatalf("got %d objects", len(objects))
	}
	version, err := os.ReadFile("../../VERSION")
	if err != nil {
		t.Fatal(err)
	}
	container := daemons[0].Spec.Template.Spec.Containers[0]
	if !slices.Contains(container.Args, "--driver-root=/driver-root") || container.Image != "ration-kubelet-plugin:"+strings.TrimSpace(string(version)) {
		t.Errorf("got %s %q", container.Image, container.Args)
	}
	for _, m := range container.VolumeMounts {
		if m.MountPath == "/run/ration" && (m.MountPropagation == nil || *m.MountPropagation != "Bidirectional") {
			t.Error("the engine would not see the regions of jobs")
		}
	}
	// Nothing but what the plugin calls.
	allowed := []string{"resourceclaims get", "resourceslices list", "resourceslices watch", "resourceslices create", "resourceslices update", "resourceslices delete", "nodes get", "pods get", "events create"}
	for _, role := range find[*rbac.ClusterRole](t, objects) {
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					if !slices.Contains(allowed, resource+" "+verb) {
						t.Errorf("the plugin may %s %s", verb, resource)
					}
				}
			}
		}
	}
}

func TestChartValues(t *testing.T) {
	objects, err := render(t, map[string]any{"fakeGPU": "h200x2", "readPods": false, "eventsPeriod": "0s", "policies": map[string]any{"maxMemory": "40Gi", "maxCompute": 50}})
	if err != nil {
		t.Fatal(err)
	}
	container := find[*apps.DaemonSet](t, objects)[0].Spec.Template.Spec.Containers[0]
	if !slices.Contains(container.Args, "--fake-gpu=h200x2") || slices.Contains(container.Args, "--driver-root=/driver-root") {
		t.Errorf("got %q", container.Args)
	}
	for _, role := range find[*rbac.ClusterRole](t, objects) {
		for _, rule := range role.Rules {
			if slices.Contains(rule.Resources, "pods") || slices.Contains(rule.Resources, "events") {
				t.Errorf("got %v", rule)
			}
		}
	}
	bare, err := render(t, map[string]any{"policies": map[string]any{"create": false}, "deviceClass": map[string]any{"create": false}})
	if err != nil || len(find[*admission.ValidatingAdmissionPolicy](t, bare)) != 0 || len(find[*resourceapi.DeviceClass](t, bare)) != 0 {
		t.Errorf("got %d objects, %v", len(bare), err)
	}
	for _, values := range []map[string]any{
		{"fakegpu": "h200"}, {"driverRoot": "run"}, {"defaultMemory": "8 GB"}, {"policies": map[string]any{"maxCompute": 101}}, {"eventsPeriod": "often"}, {"image": map[string]any{"repository": ""}},
	} {
		if _, err := render(t, values); err == nil {
			t.Errorf("%v is allowed", values)
		}
	}
}

func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../../kube/examples/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if objects := decode(t, file, text); len(objects) < 2 {
			t.Errorf("%s has %d objects", file, len(objects))
		}
	}
}
