package plugin

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"ration/check/expect"
	"ration/internal/embedded"
	"ration/internal/job"
)

// train returns a program of a claim's job that takes memory.
func train(t *testing.T, cl *resourceapi.ResourceClaim, args ...string) *exec.Cmd {
	t.Helper()
	fake, err := embedded.FakeGPU.Unpack()
	expect.OK(t, err)
	ration, err := embedded.Ration.Unpack()
	expect.OK(t, err)
	folder := filepath.Join(job.Folder(), "k8s-"+string(cl.UID))
	cmd := exec.Command(filepath.Join(fake, "fake-train"), args...)
	cmd.Env = []string{"LD_PRELOAD=" + filepath.Join(ration, "libration.so"), "LD_LIBRARY_PATH=" + fake, "FAKEGPU_QUIET=1",
		"FAKEGPU_STATE=" + filepath.Join(folder, job.MachineName), "RATION_REGION=" + filepath.Join(folder, job.RegionName)}
	return cmd
}

// refuse lets a program of a claim's job ask for more than there is.
func refuse(t *testing.T, cl *resourceapi.ResourceClaim) {
	t.Helper()
	out, _ := train(t, cl, "100g").CombinedOutput()
	expect.Must(t, strings.Contains(string(out), "OUT_OF_MEMORY"), "nothing was refused", out)
}

// A refusal becomes an event of the pods that have the claim, and many of them one.
func TestRefusalsBecomeEvents(t *testing.T) {
	c := newCluster(t)
	c.start()
	cl := newClaim(c, 1, "10Gi")
	c.add(cl)
	r := c.prepare(cl)[string(cl.UID)]
	expect.Must(t, r.Error == "", r.Error)
	now := time.Unix(1_000_000, 0)
	look := func(want int) (events []corev1.Event) {
		t.Helper()
		now = now.Add(10 * time.Second)
		c.plugin.tellRefusals(t.Context(), now, false)
		list, err := c.client.CoreV1().Events("ns").List(t.Context(), metav1.ListOptions{})
		expect.Must(t, err == nil && len(list.Items) == want, len(list.Items), "events", err, want)
		return list.Items
	}
	look(0)
	refuse(t, cl)
	event := look(1)[0]
	if event.Reason != Reason || event.InvolvedObject.Kind != "Pod" || event.InvolvedObject.Name != "pod" || event.InvolvedObject.UID != "pod-uid" ||
		!strings.HasPrefix(event.Message, "A request for GPU memory was refused: pid ") || !strings.Contains(event.Message, "asked for 100 GiB") {
		t.Errorf("got %+v", event)
	}
	for range 3 {
		refuse(t, cl)
		look(1)
	}
	expect.OK(t, c.client.CoreV1().Events("ns").Delete(t.Context(), event.Name, metav1.DeleteOptions{}))
	now = now.Add(time.Minute)
	if event := look(1)[0]; !strings.HasPrefix(event.Message, fmt.Sprint(3)) {
		t.Errorf("got %s", event.Message)
	}
}

// A program that is refused its memory at once, and whose pod ends before anyone has looked, has its event all the same.
func TestRefusedAtOnce(t *testing.T) {
	c := newCluster(t)
	c.config.EventsPeriod = time.Hour
	c.start()
	c.plugin.tellRefusals(t.Context(), time.Now(), false) // the first look, which the plugin takes by itself as well
	cl := newClaim(c, 1, "10Gi")
	c.add(cl)
	r := c.prepare(cl)[string(cl.UID)]
	expect.Must(t, r.Error == "", r.Error)
	events, err := c.client.CoreV1().Events("ns").Watch(t.Context(), metav1.ListOptions{})
	expect.OK(t, err)
	refuse(t, cl)
	// The pod has ended: it is not in the claim any more, which may be gone.
	expect.OK(t, c.client.ResourceV1().ResourceClaims("ns").Delete(t.Context(), cl.Name, metav1.DeleteOptions{}))
	c.unprepare(cl)
	e := (<-events.ResultChan()).Object.(*corev1.Event)
	expect.True(t, e.InvolvedObject.Name == "pod" && e.InvolvedObject.UID == "pod-uid" && strings.Contains(e.Message, "asked for 100 GiB"),
		e)
}

// A plugin that ends, as in an update, reports what was refused since its last event: the next one takes it for old.
func TestRefusedBeforeTheEnd(t *testing.T) {
	c := newCluster(t)
	c.config.EventsPeriod = time.Hour
	c.start()
	cl := newClaim(c, 1, "10Gi")
	c.add(cl)
	expect.Equal(t, c.prepare(cl)[string(cl.UID)].Error, "")
	c.plugin.tellRefusals(t.Context(), time.Now(), false) // the first look, which the plugin takes by itself as well
	refuse(t, cl)
	c.stop()
	list, err := c.client.CoreV1().Events("ns").List(t.Context(), metav1.ListOptions{})
	expect.Must(t, err == nil && len(list.Items) == 1, len(list.Items), "events", err)
	expect.True(t, strings.Contains(list.Items[0].Message, "asked for 100 GiB"), list.Items[0])
}

// An event that the API server does not take is not lost: a later one has its refusals.
func TestRefusedWithoutAPIServer(t *testing.T) {
	c := newCluster(t)
	c.start()
	cl := newClaim(c, 1, "10Gi")
	c.add(cl)
	expect.Equal(t, c.prepare(cl)[string(cl.UID)].Error, "")
	now := time.Now()
	c.plugin.tellRefusals(t.Context(), now, false)
	down := true
	c.client.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
		return down, nil, errors.New("no answer")
	})
	for i, want := range []int{0, 1, 1} {
		if down = i == 0; i < 2 {
			refuse(t, cl)
		}
		now = now.Add(eventPeriod)
		c.plugin.tellRefusals(t.Context(), now, false)
		list, err := c.client.CoreV1().Events("ns").List(t.Context(), metav1.ListOptions{})
		expect.Must(t, err == nil && len(list.Items) == want, i, len(list.Items), "events", err)
		expect.True(t, want == 0 || strings.HasPrefix(list.Items[0].Message, "2 requests"), list.Items)
	}
}
