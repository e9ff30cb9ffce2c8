package node

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ration/check/expect"
	"ration/kube/slices"
)

// lastWithin bounds every wait; it is reached only where something is wrong.
const lastWithin = 3 * time.Minute

// driver is where a container has the files of the stand-in driver.
const driver = "/run/ration/lib/fakegpu/"

type world struct {
	*testing.T
	ctx  context.Context
	name string // of the namespace
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, ctx: context.Background(), name: strings.ToLower(strings.TrimPrefix(t.Name(), "Test"))}
	_, err := control.Client.CoreV1().Namespaces().Create(w.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.name}}, metav1.CreateOptions{})
	w.must(err)
	w.eventually("the service account", func() error {
		_, err := control.Client.CoreV1().ServiceAccounts(w.name).Get(w.ctx, "default", metav1.GetOptions{})
		return err
	})
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("plugin: %s", here.Log(pluginName))
			t.Logf("kubelet: %s", here.Log("kubelet"))
		}
	})
	return w
}

func (w *world) must(err error) {
	w.Helper()
	expect.OK(w, err)
}

func (w *world) eventually(what string, check func() error) {
	w.Helper()
	for end := time.Now().Add(lastWithin); ; time.Sleep(100 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		expect.Must(w, !time.Now().After(end), "waiting for", what, err)
	}
}

// makeClaim makes a claim of memory on any GPU.
func (w *world) makeClaim(name, memory string) {
	w.Helper()
	w.makeClaimOf(name, request("gpu", memory, ""))
}

func (w *world) makeClaimOf(name string, requests ...resourceapi.DeviceRequest) {
	w.Helper()
	_, err := control.Client.ResourceV1().ResourceClaims(w.name).Create(w.ctx, &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}}}, metav1.CreateOptions{})
	w.must(err)
}

// request returns a request for memory of a GPU for which an expression is true.
func request(name, memory, expression string) resourceapi.DeviceRequest {
	exactly := &resourceapi.ExactDeviceRequest{DeviceClassName: slices.Driver,
		Capacity: &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{slices.Memory: resource.MustParse(memory)}}}
	if expression != "" {
		exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
	}
	return resourceapi.DeviceRequest{Name: name, Exactly: exactly}
}

// index is an expression for one GPU.
func index(i int) string { return fmt.Sprintf(`device.attributes["%s"].index == %d`, slices.Driver, i) }

// podFor returns a pod with containers that wait, in a claim.
func (w *world) podFor(name, claim string, containers ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, HostNetwork: true, TerminationGracePeriodSeconds: new(int64(1)), AutomountServiceAccountToken: new(bool),
		ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim}}}}
	user := int64(1000)
	for _, c := range containers {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: c, Image: Image, ImagePullPolicy: corev1.PullNever,
			Command:         []string{"sleep", "1000000"},
			SecurityContext: &corev1.SecurityContext{RunAsUser: &user},
			Resources:       corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}})
	}
	return pod
}

func (w *world) makePod(pod *corev1.Pod) {
	w.Helper()
	_, err := control.Client.CoreV1().Pods(w.name).Create(w.ctx, pod, metav1.CreateOptions{})
	w.must(err)
}

// runs waits until a pod runs.
func (w *world) runs(name string) (pod *corev1.Pod) {
	w.Helper()
	w.eventually("pod "+name+" to run", func() (err error) {
		pod, err = control.Client.CoreV1().Pods(w.name).Get(w.ctx, name, metav1.GetOptions{})
		if err == nil && pod.Status.Phase != corev1.PodRunning {
			err = fmt.Errorf("it is %s: %s", pod.Status.Phase, w.events(name))
		}
		return err
	})
	return pod
}

// events returns what was said of a pod.
func (w *world) events(pod string) string {
	list, err := control.Client.CoreV1().Events(w.name).List(w.ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod})
	if err != nil {
		return err.Error()
	}
	var out strings.Builder
	for _, e := range list.Items {
		fmt.Fprintf(&out, "%s: %s\n", e.Reason, e.Message)
	}
	return out.String()
}

// gives runs a program in a container, and fails the test unless it ends with this status and writes this.
func (w *world) gives(pod *corev1.Pod, container string, code int, contains string, command ...string) {
	w.Helper()
	out, got, err := Exec(w.ctx, pod, container, command...)
	w.must(err)
	expect.True(w, got == code && strings.Contains(out, contains), strings.Join(command, " "), "status", got, code, "with", contains, out)
}

func (w *world) delete(pod string) {
	w.Helper()
	w.must(control.Client.CoreV1().Pods(w.name).Delete(w.ctx, pod, metav1.DeleteOptions{}))
}

func (w *world) gone(pod string) {
	w.Helper()
	w.eventually("pod "+pod+" to go", func() error {
		_, err := control.Client.CoreV1().Pods(w.name).Get(w.ctx, pod, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there (%v): %s", err, w.events(pod))
	})
}

// nothingLeft fails the test if a claim left anything on the node.
func (w *world) nothingLeft() {
	w.Helper()
	w.eventually("nothing to be left", func() error {
		if files := Claims(); len(files) > 0 {
			return fmt.Errorf("%v", files)
		}
		return nil
	})
}

// A pod gets its ration and no more, sees it as its GPU, and its containers share it. What a program does to its
// environment changes nothing. Everything goes with the pod.
func TestRation(t *testing.T) {
	w := newWorld(t)
	w.makeClaim("ten", "10Gi")
	w.makePod(w.podFor("a", "ten", "one", "two"))
	pod := w.runs("a")
	train, smi := driver+"fake-train", driver+"fake-smi"
	w.gives(pod, "one", 0, "", train, "9g")
	w.gives(pod, "one", 1, "", train, "11g")
	w.gives(pod, "two", 1, "", train, "10g") // the context takes some of it
	w.gives(pod, "one", 0, "10240MiB", smi)

	// The stand-in driver is found by the environment, so that much of it has to stay.
	const clean = "exec env -i LD_LIBRARY_PATH=$LD_LIBRARY_PATH FAKEGPU_STATE=$FAKEGPU_STATE "
	w.gives(pod, "one", 0, "", "sh", "-c", clean+train+" 9g")
	w.gives(pod, "one", 1, "", "sh", "-c", clean+train+" 11g")
	w.gives(pod, "one", 1, "", "sh", "-c", clean+"LD_PRELOAD= RATION_REGION=/tmp/none RATION_JOB=other RATION_JOB_CREATED=1 "+train+" 11g")
	w.gives(pod, "one", 1, "", "sh", "-c", "echo 1 >/run/ration/job/region.limits")
	w.gives(pod, "one", 1, "", "sh", "-c", "echo >/etc/ld.so.preload")

	w.delete("a")
	w.gone("a")
	w.nothingLeft()
}

// A pod has the GPUs of its claim and no others, numbered from 0, and each with what the claim has of it: also where that is the machine's second alone,
// and of two GPUs not the same.
func TestDevices(t *testing.T) {
	w := newWorld(t)
	train, smi := driver+"fake-train", driver+"fake-smi"
	second := []string{"sh", "-c", "CUDA_VISIBLE_DEVICES=1 exec " + train + " $0"}
	w.makeClaimOf("second", request("gpu", "10Gi", index(1)))
	w.makePod(w.podFor("a", "second", "one"))
	w.makeClaimOf("both", request("large", "20Gi", index(0)), request("small", "5Gi", index(1)))
	w.makePod(w.podFor("b", "both", "one"))
	pod := w.runs("a")
	w.gives(pod, "one", 0, "", train, "9g")
	w.gives(pod, "one", 1, "", train, "11g")
	w.gives(pod, "one", 3, "error 100", append(second, "1g")...) // there is none
	w.gives(pod, "one", 0, "10240MiB", smi)
	pod = w.runs("b")
	w.gives(pod, "one", 0, "", train, "19g")
	w.gives(pod, "one", 1, "", train, "21g")
	w.gives(pod, "one", 0, "", append(second, "4g")...)
	w.gives(pod, "one", 1, "", append(second, "6g")...)
	w.gives(pod, "one", 0, "20480MiB", smi)
	w.gives(pod, "one", 0, "5120MiB", smi)
	for _, name := range []string{"a", "b"} {
		w.delete(name)
		w.gone(name)
	}
	w.nothingLeft()
}

// A program that asks for too much at once, and whose pod has failed before anyone has looked, has an event that says so; and the kubelet knows
// that the GPU is healthy, by a stream that does not end.
func TestRefusedAtOnce(t *testing.T) {
	w := newWorld(t)
	w.makeClaim("ten", "10Gi")
	pod := w.podFor("a", "ten", "one")
	pod.Spec.Containers[0].Command = []string{driver + "fake-train", "11g"}
	w.makePod(pod)
	w.eventually("an event of the refusal", func() error {
		if events := w.events("a"); !strings.Contains(events, "GPUMemoryRefused") || !strings.Contains(events, "11 GiB") {
			return fmt.Errorf("events: %s", events)
		}
		return nil
	})
	w.delete("a")
	w.gone("a")
	w.makePod(w.podFor("b", "ten", "one"))
	w.runs("b")
	w.eventually("the GPU's health", func() error {
		pod, err := control.Client.CoreV1().Pods(w.name).Get(w.ctx, "b", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, s := range pod.Status.ContainerStatuses[0].AllocatedResourcesStatus {
			for _, r := range s.Resources {
				if r.Health == corev1.ResourceHealthStatusHealthy {
					return nil
				}
			}
		}
		return fmt.Errorf("the pod's status has %+v", pod.Status.ContainerStatuses[0].AllocatedResourcesStatus)
	})
	text := here.Log("kubelet")
	expect.True(t, !strings.Contains(text, "unknown service") && !strings.Contains(text, "Unimplemented"),
		"the kubelet has no stream of health", text)
	w.delete("b")
	w.gone("b")
	w.nothingLeft()
}

// A tenant deletes a pod by force, and its claim, and makes others of the same names at once, with another size: each has what it asked for, and nothing
// of the last one is left.
func TestAgain(t *testing.T) {
	w := newWorld(t)
	train := driver + "fake-train"
	for gib := 10; gib <= 20; gib += 10 { // the kubelet takes more than a minute for the second
		w.eventually("a claim of the name of the last", func() error {
			_, err := control.Client.ResourceV1().ResourceClaims(w.name).Create(w.ctx, &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "own"},
				Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{request("gpu", fmt.Sprintf("%dGi", gib), index(0))}}}}, metav1.CreateOptions{})
			return err
		})
		w.makePod(w.podFor("a", "own", "one"))
		pod := w.runs("a")
		w.gives(pod, "one", 0, "", train, fmt.Sprintf("%dg", gib-1))
		w.gives(pod, "one", 1, "", train, fmt.Sprintf("%dg", gib))
		w.must(control.Client.CoreV1().Pods(w.name).Delete(w.ctx, "a", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
		w.must(control.Client.ResourceV1().ResourceClaims(w.name).Delete(w.ctx, "own", metav1.DeleteOptions{}))
	}
	w.gone("a")
	w.nothingLeft()
}

// A claim outlives its pods: one ends while the next begins, and both have the one ration.
func TestNextPod(t *testing.T) {
	w := newWorld(t)
	w.makeClaim("shared", "10Gi")
	w.makePod(w.podFor("p0", "shared", "one"))
	for i := range 3 {
		now, next := fmt.Sprint("p", i), fmt.Sprint("p", i+1)
		w.runs(now)
		w.makePod(w.podFor(next, "shared", "one"))
		w.delete(now)
		pod := w.runs(next)
		w.gives(pod, "one", 0, "", driver+"fake-train", "9g")
		w.gives(pod, "one", 1, "", driver+"fake-train", "10g")
		w.gone(now)
	}
	w.delete("p3")
	w.gone("p3")
	w.nothingLeft()
}

// The containers of a pod have the ration of its claim between them.
func TestShared(t *testing.T) {
	w := newWorld(t)
	w.makeClaim("ten", "10Gi")
	pod := w.podFor("a", "ten", "one", "two")
	pod.Spec.Containers[0].Command = []string{driver + "fake-train", "--hold", "6g"}
	w.makePod(pod)
	pod = w.runs("a")
	w.eventually("the first container to hold 6 GiB", func() error {
		out, _, err := Exec(w.ctx, pod, "two", driver+"fake-train", "4g")
		if err == nil && !strings.Contains(out, "out of memory") && !strings.Contains(out, "refused") {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
	w.gives(pod, "two", 0, "", driver+"fake-train", "2g")
	w.delete("a")
	w.gone("a")
	w.nothingLeft()
}

// The plugin and the kubelet are killed, one after the other and both: pods go on in their rations, and what is asked
// for meanwhile is done when they are back.
func TestKilled(t *testing.T) {
	w := newWorld(t)
	train := driver + "fake-train"
	w.makeClaim("ten", "10Gi")
	w.makePod(w.podFor("a", "ten", "one"))
	before := w.runs("a")
	still := func(what string) {
		t.Helper()
		w.gives(before, "one", 0, "", train, "9g")
		w.gives(before, "one", 1, "", train, "11g")
		pod := w.runs("a")
		expect.Equal(t, pod.Status.ContainerStatuses[0].ContainerID, before.Status.ContainerStatuses[0].ContainerID,
			what, "the container was started again")
	}

	here.KillPlugin()
	still("without a plugin")
	w.makeClaim("twenty", "20Gi")
	w.makePod(w.podFor("b", "twenty", "one"))
	w.eventually("the kubelet to miss the plugin", func() error {
		if events := w.events("b"); !strings.Contains(events, "FailedPrepareDynamicResources") {
			return fmt.Errorf("events: %s", events)
		}
		return nil
	})
	w.must(here.StartPlugin(w.ctx, pluginKubeconfig))
	w.gives(w.runs("b"), "one", 1, "", train, "21g")
	still("with the next plugin")

	here.KillKubelet()
	still("without a kubelet")
	w.must(here.StartKubelet(w.ctx))
	w.makeClaim("five", "5Gi")
	w.makePod(w.podFor("c", "five", "one"))
	w.gives(w.runs("c"), "one", 1, "", train, "6g")
	still("with the next kubelet")

	// A pod that is deleted while there is no plugin goes when there is one again.
	here.KillPlugin()
	w.delete("b")
	w.eventually("the kubelet to end the pod", func() error {
		pod, err := control.Client.CoreV1().Pods(w.name).Get(w.ctx, "b", metav1.GetOptions{})
		if err == nil && pod.DeletionTimestamp == nil {
			err = fmt.Errorf("it is not being deleted")
		}
		return err
	})
	here.KillKubelet()
	w.must(here.StartPlugin(w.ctx, pluginKubeconfig))
	w.must(here.StartKubelet(w.ctx))
	w.gone("b")
	still("after all of it")
	w.delete("a")
	w.delete("c")
	w.gone("a")
	w.gone("c")
	w.nothingLeft()
}
