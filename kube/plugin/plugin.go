// Package plugin is the DRA driver on a node: it tells the kubelet and the API server of each other's
// wishes, and package node does what they want.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
	health "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"ration/kube/claim"
	"ration/kube/node"
	"ration/kube/slices"
)

// Config is what a plugin is to do.
type Config struct {
	Node        *node.Node
	NodeName    string
	PodUID      string // of the plugin's own pod, where two of them may run at once; or empty
	KubeletRoot string // /var/lib/kubelet
	Client      kubernetes.Interface
	Options     slices.Options

	// Sick returns which GPUs do not work, by UUID, and why. nil: all do.
	Sick func(uuids []string) map[string]string

	Pods         bool          // it may read pods, to know their containers
	EventsPeriod time.Duration // how often refusals are looked for; 0: never
}

// Plugin is a running driver.
type Plugin struct {
	Config
	health.UnimplementedDRAResourceHealthServer // of what is not in the version that this was made for

	helper  *kubeletplugin.Helper
	running context.Context // done when it stops
	stop    context.CancelCauseFunc
	work    sync.WaitGroup // what runs in the background
	sweep   chan struct{}  // has an element when Sweep is to be called
	seen    refusals
}

// Start starts a driver. It serves the kubelet when it returns. Done of the context that it returns says
// that it cannot go on, and context.Cause why.
func Start(ctx context.Context, c Config) (_ *Plugin, running context.Context, err error) {
	ctx, stop := context.WithCancelCause(ctx)
	p := &Plugin{Config: c, running: ctx, stop: stop, sweep: make(chan struct{}, 1)}
	defer func() {
		if err != nil {
			stop(err)
		}
	}()
	if c.Pods {
		c.Node.Containers = p.containers
	}
	sockets, registry := filepath.Join(c.KubeletRoot, "plugins", slices.Driver), filepath.Join(c.KubeletRoot, "plugins_registry")
	for _, folder := range []string{sockets, registry} {
		if err := os.MkdirAll(folder, 0o750); err != nil {
			return nil, nil, fmt.Errorf("making the folder of a socket: %w (is %s the kubelet's root?)", err, c.KubeletRoot)
		}
	}
	p.helper, err = kubeletplugin.Start(ctx, p, kubeletplugin.DriverName(slices.Driver), kubeletplugin.KubeClient(c.Client), kubeletplugin.NodeName(c.NodeName),
		kubeletplugin.PluginDataDirectoryPath(sockets), kubeletplugin.RegistrarDirectoryPath(registry), kubeletplugin.RollingUpdate(types.UID(c.PodUID)))
	if err != nil {
		return nil, nil, fmt.Errorf("serving the kubelet: %w", err)
	}
	p.background(ctx, p.publish)
	p.background(ctx, p.sweepWhenAsked)
	if c.EventsPeriod > 0 {
		p.background(ctx, p.watchRefusals)
	}
	return p, ctx, nil
}

// publish publishes the GPUs. It waits for the API server, without which pods that run can still be ended.
func (p *Plugin) publish(ctx context.Context) {
	err := p.helper.PublishResources(ctx, p.Options.Resources(p.NodeName, p.Node.GPUs))
	if err != nil && ctx.Err() == nil {
		p.stop(fmt.Errorf("publishing the GPUs: %w", err))
	}
}

func (p *Plugin) background(ctx context.Context, work func(context.Context)) {
	p.work.Go(func() { work(ctx) })
}

// Stop stops the driver and waits for it. Claims stay prepared.
func (p *Plugin) Stop() {
	p.stop(context.Canceled)
	p.helper.Stop()
	p.work.Wait()
}

// PrepareResourceClaims makes what pods need that are about to start. An error becomes an event of the
// pod, and the kubelet asks again.
func (p *Plugin) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	out := map[types.UID]kubeletplugin.PrepareResult{}
	for _, c := range claims {
		devices, err := p.prepare(c)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Not prepared", "claim", klog.KObj(c), "uid", c.UID)
		} else {
			klog.FromContext(ctx).Info("Prepared", "claim", klog.KObj(c), "uid", c.UID)
		}
		out[c.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}
	return out, nil
}

func (p *Plugin) prepare(c *resourceapi.ResourceClaim) (out []kubeletplugin.Device, err error) {
	plan, err := claim.Read(c, p.NodeName, p.Node.GPUs)
	if err != nil {
		return nil, err
	}
	devices, err := p.Node.Prepare(plan)
	if errors.Is(err, node.ErrOverbooked) {
		p.sweepSoon() // the kubelet asks again
	}
	if err != nil {
		return nil, err
	}
	for _, d := range devices {
		own := kubeletplugin.Device{Requests: []string{d.Request}, PoolName: d.Pool, DeviceName: d.Device, CDIDeviceIDs: []string{d.CDI}}
		if d.ShareID != "" {
			id := types.UID(d.ShareID)
			own.ShareID = &id
		}
		out = append(out, own)
	}
	return out, nil
}

// UnprepareResourceClaims removes what was made for pods that have ended.
func (p *Plugin) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	out := map[types.UID]error{}
	for _, c := range claims {
		p.tellLast(string(c.UID))
		err := p.Node.Unprepare(string(c.UID))
		if err != nil {
			klog.FromContext(ctx).Error(err, "Not unprepared", "claim", c.String())
		} else {
			klog.FromContext(ctx).Info("Unprepared", "claim", c.String())
		}
		out[c.UID] = err
	}
	return out, nil
}

// ErrGate is why a plugin stops where the API server does not know shared devices.
var ErrGate = errors.New("the API server dropped fields of the ResourceSlice: turn on the feature gate DRAConsumableCapacity in the API server, " +
	"the scheduler and the controller manager (it is on from Kubernetes 1.36)")

// HandleError is told of errors in the background. Those that come again at each try end the plugin,
// so that they are seen: its pod fails, with the reason in its log.
func (p *Plugin) HandleError(ctx context.Context, err error, msg string) {
	var dropped *resourceslice.DroppedFieldsError
	switch {
	case errors.As(err, &dropped):
		// The slices that were published without them would hand out each device as a whole.
		p.stop(fmt.Errorf("%w: %w", ErrGate, err))
	case !errors.Is(err, kubeletplugin.ErrRecoverable), apierrors.IsInvalid(err):
		p.stop(fmt.Errorf("%s: %w", msg, err))
	default:
		klog.FromContext(ctx).Error(err, msg)
	}
}

// sweepRetry is how long it is waited before the API server is asked again.
const sweepRetry = 30 * time.Second

// sweepSoon lets what is left of claims that are gone be removed.
func (p *Plugin) sweepSoon() {
	select {
	case p.sweep <- struct{}{}:
	default: // it will be
	}
}

// sweepWhenAsked removes what is left of claims that are gone, once after each start and when there is no room for a claim.
// What the API server or a living process keeps from that is tried again.
func (p *Plugin) sweepWhenAsked(ctx context.Context) {
	p.sweepSoon()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.sweep:
		}
		removed, err := p.Node.Sweep(func(c claim.Plan) (bool, error) { return p.gone(ctx, c) })
		if len(removed) > 0 {
			klog.FromContext(ctx).Info("Removed what was left of claims", "uids", removed)
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		klog.FromContext(ctx).Error(err, "Looking for claims that are gone")
		select {
		case <-ctx.Done():
		case <-time.After(sweepRetry):
			p.sweepSoon()
		}
	}
}

// gone reports whether a claim does not exist any more, or has nothing of this node, so that no pod here can use it.
func (p *Plugin) gone(ctx context.Context, c claim.Plan) (bool, error) {
	if c.Name == "" {
		return true, nil // nothing says whose it is
	}
	now, err := p.Client.ResourceV1().ResourceClaims(c.Namespace).Get(ctx, c.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("asking for claim %s/%s: %w", c.Namespace, c.Name, err)
	}
	if string(now.UID) != c.UID || now.Status.Allocation == nil {
		return true, nil
	}
	for _, r := range now.Status.Allocation.Devices.Results {
		if r.Driver == slices.Driver && r.Pool == p.NodeName {
			return false, nil
		}
	}
	return true, nil // it was allocated anew, on another node
}

// podsWithin bounds how long a claim waits for what the API server knows of its pods, which is only for people to see.
const podsWithin = 5 * time.Second

// containers returns the containers of pods that use a claim, by the pods' UIDs.
func (p *Plugin) containers(namespace, claimName string, pods []claim.Pod) map[string][]string {
	ctx, cancel := context.WithTimeout(p.running, podsWithin)
	defer cancel()
	out := map[string][]string{}
	for _, pod := range pods {
		now, err := p.Client.CoreV1().Pods(namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if ctx.Err() != nil {
			break
		}
		if err == nil && string(now.UID) == pod.UID {
			out[pod.UID] = containersOf(now, claimName)
		}
	}
	return out
}

// containersOf returns the containers of a pod that use a claim.
func containersOf(pod *corev1.Pod, claimName string) (out []string) {
	uses := map[string]bool{} // the pod's names for the claim
	for _, c := range pod.Spec.ResourceClaims {
		uses[c.Name] = c.ResourceClaimName != nil && *c.ResourceClaimName == claimName
	}
	for _, s := range pod.Status.ResourceClaimStatuses {
		uses[s.Name] = uses[s.Name] || s.ResourceClaimName != nil && *s.ResourceClaimName == claimName
	}
	for _, c := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
		for _, r := range c.Resources.Claims {
			if uses[r.Name] {
				out = append(out, c.Name)
				break
			}
		}
	}
	return out
}
