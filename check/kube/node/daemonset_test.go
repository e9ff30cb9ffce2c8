package node

import (
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ration/check/expect"
	"ration/check/kube/chart"
)

// The plugin's image, as deploy/image names it for version e2e.
const pluginRepository, pluginTag = "localhost/ration-kubelet-plugin", "e2e"

// The chart as it is, with the plugin's own image, holds pods to their rations: its DaemonSet's pod finds the API server,
// registers with the kubelet, becomes ready, and its jobs and library reach the containers. An update of the DaemonSet
// leaves a running pod in its ration, every pod that starts meanwhile has one at the first try, and so has the next.
func TestDaemonSet(t *testing.T) {
	w := newWorld(t)
	w.must(Import(w.ctx, os.Getenv(ImageVariable)))
	api, err := control.Forward()
	w.must(err)
	defer api.Close()
	here.KillPlugin()
	defer func() {
		w.applyChart(map[string]any{"nodeSelector": map[string]any{"none": "has-this"}})
		w.eventually("the DaemonSet's pods to go", func() error {
			if pods := w.pluginPods(); len(pods) > 0 {
				return fmt.Errorf("there are %d", len(pods))
			}
			return nil
		})
		w.must(here.StartPlugin(w.ctx, pluginKubeconfig))
	}()
	values := map[string]any{"image": map[string]any{"repository": pluginRepository, "tag": pluginTag, "pullPolicy": "Never"},
		"fakeGPU": FakeGPU, "kubeletRoot": kubeletFolder, "cdiDir": cdiFolder}
	w.applyChart(values)
	w.rolledOut()

	train := driver + "fake-train"
	w.makeClaim("ten", "10Gi")
	w.makePod(w.podFor("a", "ten", "one"))
	first := w.runs("a")
	holds := func(pod *corev1.Pod, gib int) {
		t.Helper()
		w.gives(pod, "one", 0, "", train, fmt.Sprintf("%dg", gib-1))
		w.gives(pod, "one", 1, "", train, fmt.Sprintf("%dg", gib+1))
	}
	holds(first, 10)

	before := w.pluginPods()
	values["eventsPeriod"] = "2s"
	w.applyChart(values)
	var meanwhile []string
	for end := time.Now().Add(lastWithin); w.rollout() != nil; {
		expect.Must(t, time.Now().Before(end), "the update does not end", w.pluginTrouble())
		name := fmt.Sprint("meanwhile", len(meanwhile))
		meanwhile = append(meanwhile, name)
		w.makeClaim(name, "1Gi")
		w.makePod(w.podFor(name, name, "one"))
		w.runs(name)
	}
	for _, name := range meanwhile {
		events := w.events(name)
		expect.True(t, !strings.Contains(events, "FailedPrepareDynamicResources"), name, "did not get its ration at once", events)
		w.delete(name)
	}
	t.Log("pods that started during the update:", len(meanwhile))
	after := w.pluginPods()
	expect.Must(t, len(before) == 1 && len(after) == 1 && before[0].UID != after[0].UID, "the plugin's pod was not replaced")
	holds(first, 10)
	w.makeClaim("twenty", "20Gi")
	w.makePod(w.podFor("b", "twenty", "one"))
	holds(w.runs("b"), 20)
	for _, name := range []string{"a", "b"} {
		w.delete(name)
		w.gone(name)
	}
	for _, name := range meanwhile {
		w.gone(name)
	}
	w.nothingLeft()
}

// applyChart installs the chart with values, or upgrades it.
func (w *world) applyChart(values map[string]any) {
	w.Helper()
	objects, err := chart.Render("../../../kube/chart", maps.Clone(values))
	w.must(err)
	w.must(chart.Apply(w.ctx, control.Config, chart.Namespace, objects))
}

// rolledOut waits until the plugin of this node is ready, and of the DaemonSet's newest generation.
func (w *world) rolledOut() {
	w.Helper()
	w.eventually("the plugin of the DaemonSet", w.rollout)
}

// rollout returns nil if the plugin of this node is ready, of the DaemonSet's newest generation, and the only one.
func (w *world) rollout() error {
	set, err := w.daemonSet()
	if err != nil {
		return err
	}
	s := set.Status
	if s.ObservedGeneration != set.Generation || s.DesiredNumberScheduled != 1 || s.UpdatedNumberScheduled != 1 || s.NumberReady != 1 || len(w.pluginPods()) != 1 {
		return fmt.Errorf("%+v%s", s, w.pluginTrouble())
	}
	return nil
}

func (w *world) daemonSet() (*appsv1.DaemonSet, error) {
	return control.Client.AppsV1().DaemonSets(chart.Namespace).Get(w.ctx, chart.ServiceAccount, metav1.GetOptions{})
}

// pluginPods returns the pods of the DaemonSet.
func (w *world) pluginPods() []corev1.Pod {
	w.Helper()
	set, err := w.daemonSet()
	w.must(err)
	list, err := control.Client.CoreV1().Pods(chart.Namespace).List(w.ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(set.Spec.Selector)})
	w.must(err)
	return list.Items
}

// pluginTrouble returns what the cluster says of the DaemonSet's pods.
func (w *world) pluginTrouble() (text string) {
	w.Helper()
	for _, pod := range w.pluginPods() {
		for _, s := range pod.Status.ContainerStatuses {
			text += fmt.Sprintf("\n%s: %+v, before %+v", pod.Name, s.State, s.LastTerminationState)
		}
		list, err := control.Client.CoreV1().Events(chart.Namespace).List(w.ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod.Name})
		w.must(err)
		for _, e := range list.Items {
			text += fmt.Sprintf("\n%s: %s", e.Reason, e.Message)
		}
	}
	return text
}
