package plugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	stdslices "slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"ration/kube/slices"
)

// The kubelet calls the plugin that registered last. During an update a new plugin must not take
// the node from one that works: it registers only if the API server lets it write its slices, and
// the old one stays until the new one is ready.

// apiRetry is the pause before the API server is asked again.
const apiRetry = time.Second

// apiWithin bounds how long the API server has for an answer.
const apiWithin = 5 * time.Second

// Ready returns nil if the kubelet has accepted the plugin, and the API server has had the GPUs as this
// plugin publishes them.
func (p *Plugin) Ready() error {
	switch {
	case !p.registered.Load():
		return errors.New("the kubelet has not registered this plugin yet")
	case !p.published.Load():
		return errors.New("the API server does not have the GPUs of this node yet, or does not let this plugin write them (its log says which)")
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

// waitForAPI returns when the API server lets the plugin write its slices, or when no other plugin
// serves the kubelet: then this one is needed at once, to end pods.
func (p *Plugin) waitForAPI(ctx context.Context, registry string) error {
	for {
		_, _, err := p.writableSlices(ctx)
		if err == nil || !served(registry) {
			return nil
		}
		klog.FromContext(ctx).Error(err, "Not registered: another plugin serves the kubelet, and this one cannot publish")
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

// noticePublished waits until the API server has the GPUs as this plugin publishes them, and lets it write them.
func (p *Plugin) noticePublished(ctx context.Context) {
	logged := ""
	for {
		err := p.checkPublished(ctx)
		if err == nil {
			p.published.Store(true)
			return
		}
		if text := err.Error(); text != logged && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Not ready")
			logged = text
		}
		if !pause(ctx, apiRetry) {
			return
		}
	}
}

// checkPublished returns an error if the API server has other slices than this plugin publishes, as those of an
// earlier one, or does not let it write them.
func (p *Plugin) checkPublished(ctx context.Context) error {
	own, want, err := p.writableSlices(ctx)
	if err != nil {
		return err
	}
	have := []resourceapi.Device{}
	for _, s := range own {
		have = append(have, s.Spec.Devices...)
	}
	byName := func(a, b resourceapi.Device) int { return strings.Compare(a.Name, b.Name) }
	stdslices.SortFunc(have, byName)
	stdslices.SortFunc(want, byName)
	if !resourceslice.DevicesDeepEqual(have, want) {
		return errors.New("the API server does not have the GPUs of this node as this plugin publishes them")
	}
	return nil
}

// writableSlices returns the slices that the API server has of this node, and the devices that the plugin publishes. It
// returns an error if the plugin may not write them. Only a request shows that, and slices that are right already are
// not written. So it asks for a dry run, which the API server admits or refuses as any other.
func (p *Plugin) writableSlices(ctx context.Context) (own []resourceapi.ResourceSlice, want []resourceapi.Device, err error) {
	resources, err := p.resources()
	if err != nil {
		return nil, nil, err
	}
	parts := resources.Pools[p.NodeName].Slices
	for _, part := range parts {
		want = append(want, part.Devices...)
	}
	ctx, cancel := context.WithTimeout(ctx, apiWithin)
	defer cancel()
	client, dry := p.Client.ResourceV1().ResourceSlices(), []string{metav1.DryRunAll}
	list, err := client.List(ctx, metav1.ListOptions{
		FieldSelector: resourceapi.ResourceSliceSelectorDriver + "=" + slices.Driver + "," + resourceapi.ResourceSliceSelectorNodeName + "=" + p.NodeName})
	if err != nil {
		return nil, nil, fmt.Errorf("listing the slices of this node: %w", err)
	}
	probe := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{GenerateName: p.NodeName + "-"},
		Spec: resourceapi.ResourceSliceSpec{Driver: slices.Driver, NodeName: &p.NodeName, Devices: parts[0].Devices,
			Pool: resourceapi.ResourcePool{Name: p.NodeName, Generation: 1, ResourceSliceCount: 1}}}
	if _, err := client.Create(ctx, probe, metav1.CreateOptions{DryRun: dry}); err != nil {
		return nil, nil, fmt.Errorf("trying to create a slice of this node: %w", err)
	}
	for _, s := range list.Items {
		if s.Spec.Driver != slices.Driver || s.Spec.Pool.Name != p.NodeName {
			continue
		}
		if _, err := client.Update(ctx, &s, metav1.UpdateOptions{DryRun: dry}); err != nil {
			return nil, nil, fmt.Errorf("trying to update slice %s of this node: %w", s.Name, err)
		}
		own = append(own, s)
	}
	return own, want, nil
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
