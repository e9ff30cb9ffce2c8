package sched

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"ration/check/expect"
	"ration/check/kube/chart"
	"ration/check/kube/simnode"
	"ration/kube/slices"
)

const gib = 1 << 30

// lastWithin bounds every wait. It is long, as other programs may want the machine too, and reached only
// where something is wrong.
const lastWithin = 4 * time.Minute

// world is the nodes and the namespace of one test.
type world struct {
	testing.TB
	ctx        context.Context
	name       string // of the namespace, and first part of the names of nodes
	publishers map[string]*resourceslice.Controller
	gpus       map[string][]slices.GPU // by node
}

// newWorld makes nodes with so many GPUs of 80 GiB each.
func newWorld(t testing.TB, nodes, gpus int) *world {
	ctx, cancel := context.WithCancel(context.Background())
	w := &world{TB: t, ctx: ctx, name: strings.ToLower(strings.TrimPrefix(t.Name(), "Test")), publishers: map[string]*resourceslice.Controller{}, gpus: map[string][]slices.GPU{}}
	t.Cleanup(func() {
		for _, p := range w.publishers {
			p.Stop()
		}
		expect.Equal(t, kubelets.Faults(), nil)
		cancel()
	})
	_, err := control.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.name}}, metav1.CreateOptions{})
	w.must(err)
	// Pods wait for the service account of their namespace, which a controller makes.
	w.eventually("the service account", func() error {
		_, err := control.Client.CoreV1().ServiceAccounts(w.name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	for i := range nodes {
		w.addNode(fmt.Sprintf("%s-%d", w.name, i), gpus)
	}
	return w
}

func (w *world) addNode(node string, gpus int) {
	w.Helper()
	w.gpus[node] = simnode.GPUs(node, gpus, 80*gib)
	w.must(kubelets.Add(w.ctx, node, w.gpus[node]))
	w.label(node)
	w.publish(node, w.gpus[node])
}

// label lets the pods of this test onto a node.
func (w *world) label(node string) {
	w.Helper()
	_, err := control.Client.CoreV1().Nodes().Patch(w.ctx, node, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{"test":%q}}}`, w.name), metav1.PatchOptions{})
	w.must(err)
}

func (w *world) publish(node string, gpus []slices.GPU) {
	w.Helper()
	client, err := kubernetes.NewForConfig(chart.As(control.Config, node))
	w.must(err)
	p, err := simnode.Publish(w.ctx, client, node, gpus, func(err error) { w.Error(err) })
	w.must(err)
	w.publishers[node] = p
	w.eventually("the slices of "+node, func() error {
		devices := 0
		for _, s := range w.slices(node) {
			devices += len(s.Spec.Devices)
		}
		if devices != len(gpus) {
			return fmt.Errorf("%d devices", devices)
		}
		return nil
	})
}

func (w *world) slices(node string) []resourceapi.ResourceSlice {
	w.Helper()
	list, err := control.Client.ResourceV1().ResourceSlices().List(w.ctx, metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + node})
	w.must(err)
	return list.Items
}

func (w *world) must(err error) {
	w.Helper()
	expect.OK(w, err)
}

// eventually waits until a check returns nil.
func (w *world) eventually(what string, check func() error) {
	w.Helper()
	for end := time.Now().Add(lastWithin); ; time.Sleep(50 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		expect.Must(w, !time.Now().After(end), "waiting for", what, err)
	}
}

// want is a request for a part of a GPU, as quantities.
type want struct{ memory, compute string }

func (w want) request() resourceapi.DeviceRequest {
	wanted := map[resourceapi.QualifiedName]resource.Quantity{}
	if w.memory != "" {
		wanted[slices.Memory] = resource.MustParse(w.memory)
	}
	if w.compute != "" {
		wanted[slices.Compute] = resource.MustParse(w.compute)
	}
	return resourceapi.DeviceRequest{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: slices.Driver,
		Capacity: &resourceapi.CapacityRequirements{Requests: wanted}}}
}

func (w want) claim() resourceapi.ResourceClaimSpec {
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{w.request()}}}
}

func (w *world) makeClaim(name string, wanted want) error {
	_, err := control.Client.ResourceV1().ResourceClaims(w.name).Create(w.ctx, &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: wanted.claim()}, metav1.CreateOptions{})
	return err
}

// podFor returns a pod that uses a claim.
func (w *world) podFor(name, claim string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: w.name}, Spec: corev1.PodSpec{
		NodeSelector:                  map[string]string{"test": w.name},
		TerminationGracePeriodSeconds: new(int64(1)),
		ResourceClaims:                []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim}},
		Containers:                    []corev1.Container{{Name: "c", Image: "none", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}}},
	}}
}

func (w *world) makePod(pod *corev1.Pod) error {
	_, err := control.Client.CoreV1().Pods(w.name).Create(w.ctx, pod, metav1.CreateOptions{})
	return err
}

// ask makes a claim and a pod of the same name that uses it.
func (w *world) ask(name string, wanted want) {
	w.Helper()
	w.must(w.makeClaim(name, wanted))
	w.must(w.makePod(w.podFor(name, name)))
}

func (w *world) deletePod(name string) {
	w.Helper()
	w.must(control.Client.CoreV1().Pods(w.name).Delete(w.ctx, name, metav1.DeleteOptions{}))
}

func (w *world) deleteClaim(name string) {
	w.Helper()
	w.must(control.Client.ResourceV1().ResourceClaims(w.name).Delete(w.ctx, name, metav1.DeleteOptions{}))
}

func (w *world) pod(name string) *corev1.Pod {
	w.Helper()
	pod, err := control.Client.CoreV1().Pods(w.name).Get(w.ctx, name, metav1.GetOptions{})
	w.must(err)
	return pod
}

func (w *world) claim(name string) *resourceapi.ResourceClaim {
	w.Helper()
	claim, err := control.Client.ResourceV1().ResourceClaims(w.name).Get(w.ctx, name, metav1.GetOptions{})
	w.must(err)
	return claim
}

// refusal returns why the scheduler has not placed a pod, or "" if it has not decided that.
func refusal(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return c.Message
		}
	}
	return ""
}

// runs waits until a pod runs, and returns its node.
func (w *world) runs(name string) string {
	w.Helper()
	var pod *corev1.Pod
	w.eventually("pod "+name+" to run", func() error {
		if pod = w.pod(name); pod.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("it is %s: %s", pod.Status.Phase, refusal(pod))
		}
		return nil
	})
	return pod.Spec.NodeName
}

// refused waits until the scheduler has said that a pod fits nowhere, and returns its words.
func (w *world) refused(name string) (why string) {
	w.Helper()
	w.eventually("pod "+name+" to be refused", func() error {
		pod := w.pod(name)
		expect.Must(w, pod.Spec.NodeName == "", "pod", name, "was placed on", pod.Spec.NodeName, "where there is no room for it")
		if why = refusal(pod); why == "" {
			return fmt.Errorf("it is %s", pod.Status.Phase)
		}
		return nil
	})
	return why
}
