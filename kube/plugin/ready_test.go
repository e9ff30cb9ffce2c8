package plugin

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"ration/check/expect"
)

// deny makes the API server refuse to list slices while denied is set.
func deny(client *fake.Clientset, denied *atomic.Bool) {
	client.PrependReactor("list", "resourceslices", func(clienttesting.Action) (bool, runtime.Object, error) {
		return denied.Load(), nil, errors.New("no access")
	})
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
	deny(c.client, &denied)
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

// A plugin that the API server does not answer does not take the node from one that works.
func TestUpdateKeepsAPluginThatWorks(t *testing.T) {
	c := newCluster(t)
	c.config.PodUID = "old"
	c.start()
	next := c.config
	next.PodUID = "new"
	client := fake.NewClientset()
	var denied atomic.Bool
	denied.Store(true)
	deny(client, &denied)
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
	expect.Equal(t, registered(), 1, "the new plugin registered without an API server")
	cancel()
	expect.True(t, <-ended != nil, "it started")

	// Without the other it serves the kubelet, so that pods can end.
	c.stop()
	p, _, err := Start(t.Context(), next)
	expect.OK(t, err)
	expect.Equal(t, registered(), 1)
	p.Stop()
}
