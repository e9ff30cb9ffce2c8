package plugin

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"ration/check/expect"
)

// deny makes the API server refuse requests for slices while denied is set.
func deny(client *fake.Clientset, denied *atomic.Bool, verbs ...string) {
	for _, verb := range verbs {
		client.PrependReactor(verb, "resourceslices", func(clienttesting.Action) (bool, runtime.Object, error) {
			return denied.Load(), nil, errors.New("no access")
		})
	}
}

// newClient returns an API server that keeps nothing of a dry run; the fake one does.
func newClient(objects ...runtime.Object) *fake.Clientset {
	client := fake.NewClientset(objects...)
	client.PrependReactor("*", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return isDry(a), &resourceapi.ResourceSlice{}, nil
	})
	return client
}

func isDry(a clienttesting.Action) bool {
	switch a := a.(type) {
	case clienttesting.CreateActionImpl:
		return len(a.CreateOptions.DryRun) > 0
	case clienttesting.UpdateActionImpl:
		return len(a.UpdateOptions.DryRun) > 0
	}
	return false
}

func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !is(); time.Sleep(20 * time.Millisecond) {
		expect.Must(t, time.Now().Before(end), "waited for", what)
	}
}

// A plugin is ready when the kubelet has registered it and the API server has the GPUs, and not before.
func TestReady(t *testing.T) {
	c := newCluster(t)
	var denied atomic.Bool
	denied.Store(true)
	deny(c.client, &denied, "list")
	p, _, err := Start(t.Context(), c.config)
	expect.OK(t, err)
	c.plugin = p
	probe := func() int {
		w := httptest.NewRecorder()
		p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		return w.Code
	}
	expect.Equal(t, probe(), http.StatusServiceUnavailable)
	c.register()
	expect.True(t, p.registered.Load(), "the registration was not noticed")
	time.Sleep(100 * time.Millisecond)
	expect.Equal(t, probe(), http.StatusServiceUnavailable, "it is ready without an API server")
	denied.Store(false)
	until(t, "the GPUs to be published", func() bool { return probe() == http.StatusOK })
	p.registered.Store(false)
	expect.Equal(t, probe(), http.StatusServiceUnavailable, "it is ready without a kubelet")
}

// A plugin that may read slices and not write them is not ready, whether those of an earlier one are what it would
// publish or not; nor is one that may write, before the API server has its own.
func TestReadyWithSlicesOfAnother(t *testing.T) {
	for what, test := range map[string]struct {
		verb      string
		dry, same bool
	}{
		"create denied, the same slices": {"create", true, true},
		"update denied, the same slices": {"update", true, true},
		"update denied, others":          {"update", true, false},
		"others, not updated yet":        {"update", false, false},
	} {
		t.Run(what, func(t *testing.T) {
			c := newCluster(t)
			c.start()
			until(t, "the GPUs to be published", func() bool { return c.plugin.Ready() == nil })
			c.stop()
			if !test.same {
				c.config.Options.DefaultMemory = 1 << 30
			}
			var denied atomic.Bool
			denied.Store(true)
			c.client.PrependReactor(test.verb, "resourceslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
				return denied.Load() && (test.dry || !isDry(a)), nil, errors.New("no access")
			})
			c.start()
			expect.True(t, c.plugin.checkPublished(t.Context()) != nil && c.plugin.Ready() != nil, "it is ready")
			denied.Store(false)
			until(t, "the plugin to be ready", func() bool { return c.plugin.Ready() == nil })
		})
	}
}

// More devices than a slice can have are in several.
func TestReadyWithManyDevices(t *testing.T) {
	c := newCluster(t)
	gpu := c.config.Node.GPUs[0]
	for i := 2; i < 70; i++ {
		gpu.Index, gpu.UUID = i, fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", i)
		c.config.Node.GPUs = append(c.config.Node.GPUs, gpu)
	}
	c.client.PrependReactor("create", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
		s := a.(clienttesting.CreateActionImpl).Object.(*resourceapi.ResourceSlice)
		s.Name = s.GenerateName + rand.Text() // the fake API server gives no names
		return false, nil, nil
	})
	c.start()
	until(t, "the plugin to be ready", func() bool { return c.plugin.Ready() == nil })
	expect.Equal(t, len(c.published()), 70)
	expect.OK(t, c.plugin.checkPublished(t.Context()))
}

// A plugin that the API server does not answer, or does not let write, does not take the node from one that works.
func TestUpdateKeepsAPluginThatWorks(t *testing.T) {
	for _, verb := range []string{"list", "create"} {
		t.Run(verb, func(t *testing.T) { testUpdateKeeps(t, verb) })
	}
}

func testUpdateKeeps(t *testing.T, verb string) {
	c := newCluster(t)
	c.config.PodUID = "old"
	c.start()
	next := c.config
	next.PodUID = "new"
	client := newClient()
	var denied atomic.Bool
	denied.Store(true)
	deny(client, &denied, verb)
	next.Client = client
	registered := func() int {
		sockets, err := filepath.Glob(filepath.Join(c.config.KubeletRoot, "plugins_registry", "*.sock"))
		expect.OK(t, err)
		return len(sockets)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		p, _, err := Start(ctx, next)
		if p != nil {
			p.Stop()
		}
		ended <- err
	}()
	time.Sleep(2 * apiRetry)
	expect.Equal(t, registered(), 1, "the new plugin registered, and cannot publish")
	cancel()
	expect.True(t, <-ended != nil, "it started")

	// Without the other it serves the kubelet, so that pods can end.
	c.stop()
	p, _, err := Start(t.Context(), next)
	expect.OK(t, err)
	expect.Equal(t, registered(), 1)
	p.Stop()
}
