package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"ration/check/expect"
	"ration/internal/gpu"
	kubeslices "ration/kube/slices"
)

// published returns the taints of the devices that the API server has of the node, as KEY:EFFECT.
func (c *cluster) published() map[string]string {
	c.t.Helper()
	list, err := c.client.ResourceV1().ResourceSlices().List(c.t.Context(), metav1.ListOptions{})
	expect.OK(c.t, err)
	out := map[string]string{}
	for _, s := range list.Items {
		for _, d := range s.Spec.Devices {
			var taints []string
			for _, taint := range d.Taints {
				taints = append(taints, taint.Key+":"+string(taint.Effect))
			}
			out[d.Name] = strings.Join(taints, " ")
		}
	}
	return out
}

// located gives the GPUs of the node their places in the machine, and returns them.
func (c *cluster) located() []kubeslices.GPU {
	for i := range c.config.Node.GPUs {
		c.config.Node.GPUs[i].Location.PCI = fmt.Sprintf("0000:%02x:00.0", i)
	}
	return c.config.Node.GPUs
}

// A GPU that does not work is published with a taint from the first slice on, without it when it works again, and with it at once
// when the driver reports a fault, until that is over. A process outside its ration adds a taint of its own.
func TestTaints(t *testing.T) {
	c := newCluster(t)
	gpus := c.located()
	var sick atomic.Bool
	sick.Store(true)
	c.config.Sick = func([]string) (map[string]string, map[string]bool) {
		if sick.Load() {
			return map[string]string{gpus[1].UUID: "it fell off the bus"}, nil
		}
		return nil, nil
	}
	report := make(chan string)
	c.config.Faults = func(ctx context.Context, found func(kubeslices.Fault), caughtUp func()) error {
		caughtUp()
		for {
			select {
			case pci := <-report:
				found(kubeslices.Fault{PCI: pci, Why: "Xid 48", At: time.Now()})
			case <-ctx.Done():
				return nil
			}
		}
	}
	c.config.TaintUnhealthy, c.config.TaintOutside = resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNoExecute
	watch, err := c.client.ResourceV1().ResourceSlices().Watch(t.Context(), metav1.ListOptions{})
	expect.OK(t, err)
	c.start()
	first := (<-watch.ResultChan()).Object.(*resourceapi.ResourceSlice)
	watch.Stop()
	expect.True(t, len(first.Spec.Devices) == 2 && len(first.Spec.Devices[0].Taints) == 0 && len(first.Spec.Devices[1].Taints) == 1, first.Spec.Devices)
	const unhealthy, outside = kubeslices.TaintUnhealthy + ":NoSchedule", kubeslices.TaintOutside + ":NoExecute"
	has := func(a, b string) {
		t.Helper()
		until(t, "taints "+a+" and "+b, func() bool {
			got := c.published()
			return len(got) == 2 && got[gpus[0].Name()] == a && got[gpus[1].Name()] == b
		})
	}
	has("", unhealthy)
	p := c.plugin
	sick.Store(false)
	p.checkGPUs(t.Context(), time.Now())
	has("", "")
	report <- gpus[0].Location.PCI
	has(unhealthy, "")
	p.checkGPUs(t.Context(), time.Now())
	now, err := p.publishable()
	expect.OK(t, err)
	expect.Equal(t, len(now[0].Taints), 1, "a check ends a fault")
	p.gpus.setOutside(map[string]outsideUse{gpus[0].UUID: {1, 1 << 30}})
	has(unhealthy+" "+outside, "")
	p.checkGPUs(t.Context(), time.Now().Add(faultHold))
	has(outside, "")
	p.gpus.setOutside(nil)
	has("", "")
}

// A fault counts for five minutes from its time, also after a restart, and for a GPU that is found later. One that needs
// a reset counts until the driver says that the GPU needs none, also if a lesser one comes after it.
func TestFaultsThatStay(t *testing.T) {
	now := time.Now()
	gpus := []kubeslices.GPU{{UUID: "a", Location: kubeslices.Location{PCI: "0"}}, {UUID: "b", Location: kubeslices.Location{PCI: "1"}},
		{UUID: "MIG-b", Parent: "b", Location: kubeslices.Location{PCI: "1"}}}
	for what, test := range map[string]struct {
		faults  []kubeslices.Fault
		noReset map[string]bool
		at      time.Time // of the check
		sick    string
	}{
		"recent":                  {[]kubeslices.Fault{{PCI: "0", At: now.Add(-time.Minute)}}, nil, now, "a"},
		"over":                    {[]kubeslices.Fault{{PCI: "0", At: now.Add(-time.Minute)}}, nil, now.Add(4 * time.Minute), ""},
		"all parts of a GPU":      {[]kubeslices.Fault{{PCI: "1", At: now}}, nil, now, "MIG-b b"},
		"reset, days ago":         {[]kubeslices.Fault{{PCI: "0", At: now.Add(-99 * time.Hour), Reset: true}}, nil, now, "a"},
		"reset, and a lesser one": {[]kubeslices.Fault{{PCI: "0", At: now, Reset: true}, {PCI: "0", At: now}}, nil, now.Add(time.Hour), "a"},
		"reset of another":        {[]kubeslices.Fault{{PCI: "0", At: now, Reset: true}}, map[string]bool{"b": true}, now.Add(time.Hour), "a"},
		"reset is done":           {[]kubeslices.Fault{{PCI: "1", At: now, Reset: true}}, map[string]bool{"b": true}, now.Add(time.Hour), ""},
		"reset a moment ago":      {[]kubeslices.Fault{{PCI: "0", At: now, Reset: true}}, map[string]bool{"a": true}, now.Add(time.Minute), "a"},
		"the log is read again":   {[]kubeslices.Fault{{PCI: "0", At: now}, {PCI: "0", At: now.Add(-time.Hour), Reset: true}}, map[string]bool{"a": true}, now, "a"},
		"of no GPU":               {[]kubeslices.Fault{{PCI: "7", At: now}}, nil, now, ""},
	} {
		var s gpuStates
		for _, f := range test.faults {
			s.addFault(nil, f, now) // the GPU is found later
		}
		s.setSick(gpus, nil, test.noReset, test.at)
		sick, _, _ := s.get()
		expect.Equal(t, strings.Join(slices.Sorted(maps.Keys(sick)), " "), test.sick, what)
	}
}

// The first slice of a plugin has the taints of faults that an earlier one has seen. If the log cannot be read, it is
// tried again, and the GPUs are published meanwhile.
func TestFaultsBeforeTheStart(t *testing.T) {
	retry := faultsRetry
	t.Cleanup(func() { faultsRetry = retry })
	faultsRetry = time.Millisecond
	for _, fails := range []bool{false, true} {
		c := newCluster(t)
		gpus := c.located()
		var attempts atomic.Int32
		var known atomic.Bool
		checked := make(chan struct{})
		checkedOnce := sync.OnceFunc(func() { close(checked) })
		c.config.TaintUnhealthy = resourceapi.DeviceTaintEffectNoSchedule
		c.config.Faults = func(ctx context.Context, found func(kubeslices.Fault), caughtUp func()) error {
			if attempts.Add(1); fails {
				return errors.New("no log")
			}
			select { // a plugin that does not wait for the log goes on meanwhile
			case <-checked:
			case <-time.After(time.Second):
			}
			found(kubeslices.Fault{PCI: gpus[0].Location.PCI, Why: "Xid 79", At: time.Now().Add(-time.Hour), Reset: true})
			found(kubeslices.Fault{PCI: gpus[1].Location.PCI, Why: "Xid 48", At: time.Now().Add(-time.Hour)})
			known.Store(true)
			caughtUp()
			<-ctx.Done()
			return nil
		}
		c.config.Sick = func([]string) (map[string]string, map[string]bool) {
			expect.True(t, fails || known.Load(), "the GPUs are checked before the log was read")
			checkedOnce()
			return nil, nil
		}
		watch, err := c.client.ResourceV1().ResourceSlices().Watch(t.Context(), metav1.ListOptions{})
		expect.OK(t, err)
		c.start()
		first := (<-watch.ResultChan()).Object.(*resourceapi.ResourceSlice)
		watch.Stop()
		expect.Must(t, len(first.Spec.Devices) == 2, first.Spec.Devices)
		expect.True(t, (len(first.Spec.Devices[0].Taints) == 1) == !fails && len(first.Spec.Devices[1].Taints) == 0, fails, first.Spec.Devices)
		until(t, "another attempt", func() bool { return !fails || attempts.Load() > 2 })
		c.stop()
	}
}

// Where the API server drops taints, a GPU that does not work is not published until it works.
func TestTaintsGateOff(t *testing.T) {
	c := newCluster(t)
	gpus := c.config.Node.GPUs
	for _, verb := range []string{"create", "update"} {
		c.client.PrependReactor(verb, "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
			slice := action.(interface{ GetObject() runtime.Object }).GetObject().(*resourceapi.ResourceSlice)
			for i := range slice.Spec.Devices {
				slice.Spec.Devices[i].Taints = nil
			}
			return false, nil, nil
		})
	}
	c.config.TaintUnhealthy = resourceapi.DeviceTaintEffectNoSchedule
	c.located()
	c.start()
	until(t, "both GPUs", func() bool { return len(c.published()) == 2 })
	c.plugin.gpus.addFault(gpus, kubeslices.Fault{PCI: gpus[0].Location.PCI, Why: "Xid 48", At: time.Now()}, time.Now())
	until(t, "one GPU", func() bool {
		got := c.published()
		_, ok := got[gpus[1].Name()]
		return len(got) == 1 && ok
	})
	c.plugin.checkGPUs(t.Context(), time.Now().Add(faultHold))
	until(t, "both GPUs again", func() bool { return len(c.published()) == 2 })
	expect.OK(t, context.Cause(c.plugin.running))
}

// GPUs that are added are published while the plugin runs, and those that are removed are not any more. One that a claim
// has a part of stays.
func TestFoundGPUs(t *testing.T) {
	c := newCluster(t)
	all := c.config.Node.GPUs
	driver := &gpu.Driver{}
	c.config.Node.GPUs = all[:1]
	var have atomic.Pointer[[]kubeslices.GPU]
	set := func(gpus ...kubeslices.GPU) { have.Store(&gpus) }
	set(all[0])
	c.config.Find = func() ([]kubeslices.GPU, *gpu.Driver, error) { return slices.Clone(*have.Load()), driver, nil }
	c.start()
	expected := func(gpus ...kubeslices.GPU) {
		t.Helper()
		c.plugin.checkGPUs(t.Context(), time.Now())
		until(t, "these GPUs", func() bool {
			got := c.published()
			for _, g := range gpus {
				if _, ok := got[g.Name()]; !ok {
					return false
				}
			}
			return len(got) == len(gpus)
		})
	}
	expected(all[0])
	set(all...)
	expected(all...)
	expect.Equal(t, len(c.plugin.health()), 2)
	own := newClaim(c, 1, "10Gi")
	own.Status.Allocation.Devices.Results[0].Device = all[1].Name()
	c.add(own)
	expect.Equal(t, c.prepare(own)[string(own.UID)].Error, "", "a claim of the GPU that was added")
	set()
	expected(all[1])
	c.unprepare(own)
	set(all[0])
	expected(all[0])
}

// metrics returns the answer to a scrape.
func (c *cluster) metrics() string {
	w := httptest.NewRecorder()
	c.plugin.Metrics().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return w.Body.String()
}

// The metrics have the claims, the GPUs' health and the processes outside.
func TestMetrics(t *testing.T) {
	c := newCluster(t)
	gpus := c.located()
	c.config.MaxMemory = 2 << 30
	c.start()
	within, beyond := newClaim(c, 1, "1Gi"), newClaim(c, 2, "3Gi")
	c.add(within, beyond)
	c.prepare(within, beyond)
	c.plugin.gpus.addFault(gpus, kubeslices.Fault{PCI: gpus[0].Location.PCI, Why: "Xid 48", At: time.Now()}, time.Now())
	expect.True(t, !strings.Contains(c.metrics(), "outside"), "processes that nobody has looked for", c.metrics())
	c.plugin.gpus.setOutside(map[string]outsideUse{gpus[0].UUID: {}, gpus[1].UUID: {2, 3 << 30}})
	got := c.metrics()
	for _, line := range []string{
		"claims 1", "prepare_errors_total 1", "prepare_seconds_count 1",
		`gpu_healthy{uuid="` + gpus[0].UUID + `"} 0`, `gpu_healthy{uuid="` + gpus[1].UUID + `"} 1`,
		`outside_processes{uuid="` + gpus[0].UUID + `"} 0`, `outside_processes{uuid="` + gpus[1].UUID + `"} 2`,
		`outside_memory_bytes{uuid="` + gpus[1].UUID + `"} 3.221225472e+09`,
	} {
		expect.True(t, strings.Contains(got, "\n"+metricsPrefix+line+"\n"), "no line", line, got)
	}
	c.unprepare(within)
}
