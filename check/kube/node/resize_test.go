package node

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ration/check/expect"
	"ration/kube/slices"
)

// An annotation of the Node gives a running claim more memory and less, and what it asked for again. Its container goes on, and
// its pod has an event each time. The scheduler does not get what the claim has more. The plugin has the chart's rights.
func TestResize(t *testing.T) {
	w := newWorld(t)
	train := driver + "fake-train"
	w.makeClaimOf("ten", request("gpu", "10Gi", index(0)))
	w.makePod(w.podFor("a", "ten", "one"))
	pod := w.runs("a")
	claim, err := control.Client.ResourceV1().ResourceClaims(w.name).Get(w.ctx, "ten", metav1.GetOptions{})
	w.must(err)
	annotate := func(value, event string) {
		t.Helper()
		patch := fmt.Sprintf(`{"metadata": {"annotations": {"resize.gpu.ration/%s": %s}}}`, claim.UID, value)
		_, err := control.Client.CoreV1().Nodes().Patch(w.ctx, Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		w.must(err)
		w.eventually("an event of the pod", func() error {
			if events := w.events("a"); !strings.Contains(events, event) {
				return fmt.Errorf("events: %s", events)
			}
			return nil
		})
	}
	defer annotate("null", "")
	w.gives(pod, "one", 1, "", train, "11g")
	annotate(`"20Gi"`, "GPUMemoryResized: Claim ten has 20Gi of each of its GPUs now")
	w.gives(pod, "one", 0, "20480MiB", driver+"fake-smi")
	w.gives(pod, "one", 0, "", train, "19g")
	w.gives(pod, "one", 1, "", train, "21g")
	// The device has about 79 GiB, of which 20 are the claim's.
	w.eventually("the plugin to publish less", func() error {
		list, err := control.Client.ResourceV1().ResourceSlices().List(w.ctx, metav1.ListOptions{})
		for _, s := range list.Items {
			for _, d := range s.Spec.Devices {
				if q := d.Capacity[slices.Memory].Value; err == nil && q.Value() < 70<<30 {
					return nil
				}
			}
		}
		return fmt.Errorf("it publishes %+v (%v)", list.Items, err)
	})
	w.makeClaimOf("rest", request("gpu", "60Gi", index(0)))
	w.makePod(w.podFor("b", "rest", "one"))
	w.eventually("the scheduler to find no room", func() error {
		if events := w.events("b"); !strings.Contains(events, "FailedScheduling") {
			return fmt.Errorf("events: %s", events)
		}
		return nil
	})
	annotate(`"5Gi"`, "GPUMemoryResized: Claim ten has 5Gi of each of its GPUs now")
	w.gives(pod, "one", 0, "", train, "4g")
	w.gives(pod, "one", 1, "", train, "6g")
	w.gives(w.runs("b"), "one", 0, "", train, "59g")
	annotate(`"30Gi"`, "GPUMemoryResizeRefused")
	w.gives(pod, "one", 1, "", train, "6g")
	annotate("null", "has what it asked for again")
	w.gives(pod, "one", 0, "", train, "9g")
	w.gives(pod, "one", 1, "", train, "11g")
	now := w.runs("a")
	expect.Equal(t, now.Status.ContainerStatuses[0].ContainerID, pod.Status.ContainerStatuses[0].ContainerID, "the container was started again")
	expect.Equal(t, now.Status.Phase, corev1.PodRunning)
	for _, name := range []string{"a", "b"} {
		w.delete(name)
		w.gone(name)
	}
	w.nothingLeft()
}
