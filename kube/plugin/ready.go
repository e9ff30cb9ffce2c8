package plugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"ration/kube/slices"
)

// The kubelet calls the plugin that registered last. During an update a new plugin must not take
// the node from one that works: it registers only if the API server answers, and the old one stays
// until the new one is ready.

// apiRetry is the pause before the API server is asked again.
const apiRetry = time.Second

// Ready returns nil if the kubelet has accepted the plugin, and the API server has the GPUs.
func (p *Plugin) Ready() error {
	switch {
	case !p.registered.Load():
		return errors.New("the kubelet has not registered this plugin yet")
	case !p.published.Load():
		return errors.New("the API server does not have the GPUs of this node yet")
	}
	return nil
}

// ServeHTTP answers a readiness probe.
func (p *Plugin) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	if err := p.Ready(); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}

// noticeRegistration notices whether the kubelet has accepted the plugin.
func (p *Plugin) noticeRegistration(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if status, ok := request.(*registerapi.RegistrationStatus); ok {
		p.registered.Store(status.PluginRegistered)
	}
	return handle(ctx, request)
}

// waitForAPI returns when the API server answers, or when no other plugin serves the kubelet: then
// this one is needed at once, to end pods.
func (p *Plugin) waitForAPI(ctx context.Context, registry string) error {
	for {
		_, err := p.ownDevices(ctx)
		if err == nil || !served(registry) {
			return nil
		}
		klog.FromContext(ctx).Error(err, "Not registered: another plugin serves the kubelet, and the API server does not answer this one")
		if !pause(ctx, apiRetry) {
			return context.Cause(ctx)
		}
	}
}

// served reports whether a plugin of this driver listens in the kubelet's registry.
func served(registry string) bool {
	sockets, _ := filepath.Glob(filepath.Join(registry, slices.Driver+"*-reg.sock"))
	for _, path := range sockets {
		if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
			_ = conn.Close()
			return true
		}
	}
	return false
}

// noticePublished waits until the API server has all GPUs of this node.
func (p *Plugin) noticePublished(ctx context.Context) {
	for {
		have, err := p.ownDevices(ctx)
		want, err2 := p.publishable()
		missing := err != nil || err2 != nil
		for _, g := range want {
			missing = missing || !have[g.Name()]
		}
		if !missing {
			p.published.Store(true)
			return
		}
		if !pause(ctx, apiRetry) {
			return
		}
	}
}

// ownDevices returns the names of the devices that the API server has of this node.
func (p *Plugin) ownDevices(ctx context.Context) (map[string]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, podsWithin)
	defer cancel()
	list, err := p.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: resourceapi.ResourceSliceSelectorDriver + "=" + slices.Driver + "," + resourceapi.ResourceSliceSelectorNodeName + "=" + p.NodeName})
	if err != nil {
		return nil, fmt.Errorf("listing the slices of this node: %w", err)
	}
	out := map[string]bool{}
	for _, s := range list.Items {
		if s.Spec.Driver != slices.Driver || s.Spec.Pool.Name != p.NodeName {
			continue
		}
		for _, d := range s.Spec.Devices {
			out[d.Name] = true
		}
	}
	return out, nil
}

// pause returns false if the context ends before the time is over.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
