package plugin

import (
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"ration/check/expect"
	kubeslices "ration/kube/slices"
	"ration/machine"
)

// annotate sets the annotations of the node.
func (c *cluster) annotate(annotations map[string]string) {
	c.t.Helper()
	n, err := c.client.CoreV1().Nodes().Get(c.t.Context(), nodeName, metav1.GetOptions{})
	expect.OK(c.t, err)
	n.Annotations = annotations
	_, err = c.client.CoreV1().Nodes().Update(c.t.Context(), n, metav1.UpdateOptions{})
	expect.OK(c.t, err)
}

// limit returns the limit of a claim's job on the first GPU.
func (c *cluster) limit(uid string) uint64 {
	j, err := machine.ReadJob("k8s-" + uid)
	if err != nil || len(j.Devices) == 0 {
		return 0
	}
	return j.Devices[0].Limit
}

// publishedMemory returns the memory of the first GPU, as the API server has it.
func (c *cluster) publishedMemory() int64 {
	c.t.Helper()
	list, err := c.client.ResourceV1().ResourceSlices().List(c.t.Context(), metav1.ListOptions{})
	expect.OK(c.t, err)
	for _, s := range list.Items {
		for _, d := range s.Spec.Devices {
			if q := d.Capacity[kubeslices.Memory].Value; d.Name == c.config.Node.GPUs[0].Name() {
				return q.Value()
			}
		}
	}
	return 0
}

// reasons returns a function with the reasons of all events so far.
func (c *cluster) reasons() func() []string {
	var lock sync.Mutex
	var out []string
	c.client.PrependReactor("create", "events", func(action clienttesting.Action) (bool, runtime.Object, error) {
		lock.Lock()
		defer lock.Unlock()
		e := action.(clienttesting.CreateAction).GetObject().(*corev1.Event)
		out = append(out, e.Reason)
		return true, e, nil
	})
	return func() []string {
		lock.Lock()
		defer lock.Unlock()
		return slices.Clone(out)
	}
}

// An annotation of the Node resizes a running claim, and what it gets beyond its allocation is not published any more.
// An annotation of the claim itself, which its tenant can write, does nothing.
func TestResizeByTheNode(t *testing.T) {
	const gib = 1 << 30
	c := newCluster(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: "pod-uid"}})
	own, beside := newClaim(c, 1, "10Gi"), newClaim(c, 2, "10Gi")
	own.Annotations = map[string]string{ResizePrefix + string(own.UID): "20Gi", "gpu.ration/resize": "20Gi"}
	c.add(own, beside)
	reasons := c.reasons()
	c.config.EventsPeriod = time.Hour
	c.start()
	total := int64(c.config.Node.GPUs[0].Capacity())
	until(t, "the GPUs are published", func() bool { return c.publishedMemory() == total })
	for _, r := range c.prepare(own, beside) {
		expect.Equal(t, r.Error, "")
	}
	key := func(uid string) string { return ResizePrefix + uid }
	c.annotate(map[string]string{key(string(beside.UID)): "12Gi"})
	until(t, "the annotated claim is resized", func() bool { return c.limit(string(beside.UID)) == 12*gib })
	expect.Equal(t, c.limit(string(own.UID)), uint64(10*gib), "a tenant has annotated its claim")
	until(t, "what it has more is not published", func() bool { return c.publishedMemory() == total-2*gib })
	until(t, "its pod has an event", func() bool { return slices.Contains(reasons(), ReasonResized) })

	c.annotate(map[string]string{key(string(beside.UID)): "1000Gi"})
	until(t, "too much is refused", func() bool { return slices.Contains(reasons(), ReasonResizeRefused) })
	expect.Equal(t, c.limit(string(beside.UID)), uint64(12*gib))

	// The next plugin knows what the last one gave.
	c.stop()
	c.annotate(nil)
	c.start()
	until(t, "the claim has what was allocated", func() bool { return c.limit(string(beside.UID)) == 10*gib })
	until(t, "all is published again", func() bool { return c.publishedMemory() == total })

	c.annotate(map[string]string{key(string(own.UID)): "11Gi"})
	until(t, "a claim has more", func() bool { return c.publishedMemory() == total-gib })
	// An annotation may be older than the claim's pod.
	later := newClaim(c, 3, "10Gi")
	c.annotate(map[string]string{key(string(own.UID)): "11Gi", key(string(later.UID)): "13Gi"})
	until(t, "the annotations are known", func() bool { return len(*c.plugin.sizes.Load()) == 2 })
	c.add(later)
	expect.Equal(t, c.prepare(later)[string(later.UID)].Error, "")
	until(t, "the later claim is resized", func() bool { return c.publishedMemory() == total-4*gib })
	c.unprepare(own, beside, later)
	until(t, "what an ended claim had more is published", func() bool { return c.publishedMemory() == total })
}
