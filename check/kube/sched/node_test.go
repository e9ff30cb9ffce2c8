package sched

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ration/check/expect"
	"ration/check/kube/cluster"
	"ration/check/kube/simnode"
	ours "ration/kube/slices"
)

// force deletes a pod whose node does not answer.
var force = metav1.DeleteOptions{GracePeriodSeconds: new(int64)}

// A node goes silent. Its pods are sent away, but what they have is not given to others as long as the node may come back;
// its slices and what was allocated of them go with the node. What waited is placed on other nodes, and on the node
// when it returns as an empty one.
func TestNodeLost(t *testing.T) {
	w := newWorld(t, 2, 1)
	control.StopComponent(cluster.ControllerManager)
	w.must(control.StartControllerManager(w.ctx, "--node-monitor-grace-period=10s", "--node-monitor-period=1s"))
	t.Cleanup(func() { // other tests send no heartbeats
		control.StopComponent(cluster.ControllerManager)
		expect.Equal(t, control.StartControllerManager(context.Background()), nil)
	})
	beating, end := context.WithCancel(w.ctx)
	defer end()
	go kubelets.Beat(beating, time.Second)

	// Each node has room for 20 GiB more. The pod of the node that will be lost may be sent away at once.
	w.must(w.makeClaim("a", want{memory: "60Gi"}))
	pod := w.podFor("a", "a")
	pod.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64)}}
	w.must(w.makePod(pod))
	w.ask("b", want{memory: "60Gi"})
	lost, kept := w.runs("a"), w.runs("b")
	expect.Must(t, lost != kept, "both pods are on", lost)
	kubelets.Lose(lost)
	w.publishers[lost].Stop()
	w.eventually("the pod to be sent away", func() error {
		if w.pod("a").DeletionTimestamp == nil {
			return fmt.Errorf("it is not")
		}
		return nil
	})
	w.has("a", ours.Memory, 60*gib)
	w.ask("c", want{memory: "30Gi"})
	w.refused("c")
	w.ask("d", want{memory: "20Gi"})
	expect.Equal(t, w.runs("d"), kept, "the node of a pod: the other is lost")

	w.must(control.Client.CoreV1().Nodes().Delete(w.ctx, lost, metav1.DeleteOptions{}))
	w.gone("a")
	w.eventually("the claim to be free and the slices to go", func() error {
		if s := w.claim("a").Status; s.Allocation != nil || len(w.slices(lost)) > 0 {
			return fmt.Errorf("it has %+v, and there are %d slices", s, len(w.slices(lost)))
		}
		return nil
	})

	w.addNode(lost, 1)
	expect.Equal(t, w.runs("c"), lost, "the node of c: the other is full")
	w.ask("e", want{memory: "50Gi"})
	w.runs("e")
	w.has("e", ours.Memory, 50*gib)
}

// A plugin that restarts finds its slice and writes nothing. A GPU that is new is published in the same slice, and used; one
// that is gone takes no more pods, and those that have it keep it. The pool has one slice, so that the scheduler never
// sees half of a change, and its generation stays.
func TestPluginRestarted(t *testing.T) {
	w := newWorld(t, 1, 2)
	node := w.name + "-0"
	w.ask("a", want{memory: "60Gi"})
	w.runs("a")
	w.ask("b", want{memory: "60Gi"})
	w.runs("b")
	before := w.slices(node)
	expect.Must(t, len(before) == 1 && before[0].Spec.Pool.ResourceSliceCount == 1, len(before), "slices", before)

	// Without a plugin everything stays, and pods are placed by what it published.
	w.publishers[node].Stop()
	w.ask("c", want{memory: "20Gi"})
	w.runs("c")
	w.publish(node, w.gpus[node])
	w.ask("d", want{memory: "20Gi"})
	w.runs("d")
	w.ask("e", want{memory: "70Gi"})
	w.refused("e")

	// The third GPU comes by an update of the running plugin: by then it has seen its slice.
	w.gpus[node] = simnode.GPUs(node, 3, 80*gib)
	kubelets.SetGPUs(node, w.gpus[node])
	resources := ours.Options{}.Resources(node, w.gpus[node])
	w.publishers[node].Update(&resources)
	w.runs("e")
	after := w.slices(node)
	if len(after) != 1 || after[0].UID != before[0].UID || after[0].Generation != before[0].Generation+1 || after[0].Spec.Pool != before[0].Spec.Pool || len(after[0].Spec.Devices) != 3 {
		t.Errorf("after a restart and an update there are %d slices: %+v, %+v; before %+v, %+v", len(after), after[0].ObjectMeta, after[0].Spec.Pool, before[0].ObjectMeta, before[0].Spec.Pool)
	}
	s := w.publishers[node].GetStats()
	expect.True(t, s.NumCreates == 0 && s.NumUpdates == 1 && s.NumDeletes == 0, "the restarted plugin wrote", s)

	// The first GPU fails while no plugin runs.
	gone := w.has("a", ours.Memory, 60*gib)
	w.publishers[node].Stop()
	w.publish(node, slices.DeleteFunc(slices.Clone(w.gpus[node]), func(g ours.GPU) bool { return g.Name() == gone }))
	w.has("a", ours.Memory, 60*gib)
	w.ask("f", want{memory: "10Gi"})
	w.runs("f")
	expect.True(t, w.has("f", ours.Memory, 10*gib) != gone, "a pod was given a GPU that is gone")
	w.deletePod("a")
	w.gone("a")
	w.ask("g", want{memory: "11Gi"})
	w.refused("g")
}

// A GPU with the taint of one that does not work gets no claims, and keeps those that it has. Without the taint it gets claims
// again.
func TestSickGPU(t *testing.T) {
	w := newWorld(t, 1, 2)
	node := w.name + "-0"
	w.ask("before", want{memory: "10Gi"})
	w.runs("before")
	sick := w.has("before", ours.Memory, 10*gib)
	gpus := slices.Clone(w.gpus[node])
	for i := range gpus {
		if gpus[i].Name() == sick {
			gpus[i].Taints = []resourceapi.DeviceTaint{{Key: ours.TaintUnhealthy, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
		}
	}
	update := func(gpus []ours.GPU) {
		before := w.slices(node)[0].Generation
		resources := ours.Options{}.Resources(node, gpus)
		w.publishers[node].Update(&resources)
		w.eventually("the taints to be published", func() error {
			if now := w.slices(node); len(now) != 1 || now[0].Generation == before {
				return fmt.Errorf("the slices are %v", now)
			}
			return nil
		})
	}
	update(gpus)
	w.ask("whole", want{memory: "80Gi"})
	w.runs("whole")
	expect.True(t, w.has("whole", ours.Memory, 80*gib) != sick, "a pod was given a GPU that does not work")
	w.ask("small", want{memory: "1Gi"})
	w.refused("small")
	w.runs("before") // still
	update(w.gpus[node])
	w.runs("small")
	expect.Equal(t, w.has("small", ours.Memory, gib), sick)
}

// The scheduler is killed in the middle of a burst. The next one goes on, and no device has more than it can hold.
func TestSchedulerKilled(t *testing.T) {
	w := newWorld(t, 2, 2)
	killed := make(chan error)
	go func() {
		for range 3 {
			control.StopComponent(cluster.Scheduler)
			if err := control.StartScheduler(w.ctx); err != nil {
				killed <- err
				return
			}
		}
		killed <- nil
	}()
	w.concurrently(func(client int) error {
		for i := range 10 {
			name := fmt.Sprintf("p-%d-%d", client, i)
			if err := w.makeClaim(name, want{memory: "3Gi"}); err != nil {
				return err
			}
			if err := w.makePod(w.podFor(name, name)); err != nil {
				return err
			}
		}
		return nil
	})
	w.must(<-killed)
	w.settled(nil)
	perDevice := map[string]int{}
	claims, err := control.Client.ResourceV1().ResourceClaims(w.name).List(w.ctx, metav1.ListOptions{})
	w.must(err)
	for _, c := range claims.Items {
		if c.Status.Allocation != nil {
			perDevice[c.Status.Allocation.Devices.Results[0].Device]++
		}
	}
	for _, n := range perDevice {
		if n != 26 { // 26 × 3 = 78
			t.Errorf("devices have %v claims, want 26 each", slices.Collect(maps.Values(perDevice)))
			break
		}
	}
}
