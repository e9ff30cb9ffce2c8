// Package plugin is the DRA driver on a node. It serves the kubelet's calls with package node,
// publishes the GPUs to the API server, and reports refused memory as events of pods.
//
// These events are not machine's stream of events (machine.Watch). A pod gets at most one event a
// minute with the number of refusals since the last one. And it must get the last one before the
// claim's job is removed, when a stream that runs beside it may not have read the job yet. So the
// plugin reads the counters of the claim's jobs itself (refusals.go).
package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
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

	"ration/internal/gpu"
	"ration/internal/limit"
	"ration/kube/claim"
	"ration/kube/node"
	"ration/kube/slices"
)

// Config has the settings of a plugin.
type Config struct {
	Node        *node.Node
	NodeName    string
	PodUID      string // UID of the plugin's own pod, if two plugins may run at the same time; or empty
	KubeletRoot string // /var/lib/kubelet
	Client      kubernetes.Interface
	Options     slices.Options
	MaxMemory   uint64         // most bytes of a claim, all its devices together; 0 for no bound
	MaxCompute  int            // most per cent of compute of a claim, all its devices together; 100 for no bound
	MaxPriority limit.Priority // highest that a claim may ask for; its class may give any. 0 for normal

	MaxNamespaceMemory uint64 // most bytes of the claims of a namespace, on all nodes together; 0 for no bound
	Namespace          string // of the plugin's own pod, for ConfigMaps of what namespaces have (quota.go)

	// Find returns the GPUs that the machine has now, and the same for the limits of jobs. With nil, they
	// are those of the start.
	Find func() ([]slices.GPU, *gpu.Driver, error)

	// Sick returns the GPUs that do not work, by UUID, and why; and those for which the driver says that
	// they need no reset. With nil, all work.
	Sick func(uuids []string) (sick map[string]string, noReset map[string]bool)

	// Faults calls found for each fault that the driver has reported since the boot, then caughtUp, and
	// found for each from now on, until the context ends. With nil, none is reported.
	Faults func(ctx context.Context, found func(slices.Fault), caughtUp func()) error

	// Users returns the processes that hold memory of these GPUs, by UUID and by their PIDs on the
	// host, and how many bytes. A GPU that is left out is one whose processes are not known, and the
	// error says why. With nil, nothing is known of them.
	Users func(uuids []string) (map[string]map[int]uint64, error)

	// Effects of the taints of a GPU that does not work, and of one that a process of a pod uses
	// without the library. If empty, it gets no taint.
	TaintUnhealthy, TaintOutside resourceapi.DeviceTaintEffect

	Pods         bool          // it may read pods, to find their containers
	EventsPeriod time.Duration // how often to check for refusals; 0 for no events at all
}

// Plugin is a running driver.
type Plugin struct {
	Config
	health.UnimplementedDRAResourceHealthServer // for calls that this version does not know

	helper  *kubeletplugin.Helper
	running context.Context // ends when the plugin stops
	stop    context.CancelCauseFunc
	work    sync.WaitGroup                    // background goroutines
	sweep   chan struct{}                     // has an element if Sweep should be called
	resize  chan struct{}                     // has an element if claims should be resized
	sizes   atomic.Pointer[map[string]string] // of claims, by UID, as their Node's annotations say; nil until they are known
	seen    refusals
	gpus    gpuStates
	metrics metrics
	admits  sync.Mutex           // held while a claim is admitted
	cgroup  func(pid int) string // the cgroup of a process; tests replace it

	registered atomic.Bool // the kubelet has accepted the plugin
	published  atomic.Bool // the API server has had the GPUs as this plugin publishes them
}

// Start starts a driver. The driver serves the kubelet when Start returns. The returned context
// ends if the driver cannot continue; context.Cause says why.
func Start(ctx context.Context, c Config) (_ *Plugin, running context.Context, err error) {
	ctx, stop := context.WithCancelCause(ctx)
	p := &Plugin{Config: c, running: ctx, stop: stop, sweep: make(chan struct{}, 1), resize: make(chan struct{}, 1), cgroup: cgroupOf, metrics: newMetrics()}
	defer func() {
		if err != nil {
			stop(err)
		}
	}()
	if c.Pods {
		c.Node.Containers = p.containers
	}
	c.Node.Warn = func(text string) { klog.FromContext(ctx).Info("Unprepared while processes use it", "warning", text) }
	sockets, registry := filepath.Join(c.KubeletRoot, "plugins", slices.Driver), filepath.Join(c.KubeletRoot, "plugins_registry")
	for _, folder := range []string{sockets, registry} {
		if err := os.MkdirAll(folder, 0o750); err != nil {
			return nil, nil, fmt.Errorf("making the folder of a socket: %w (is %s the kubelet's root?)", err, c.KubeletRoot)
		}
	}
	// Before anything is published: a GPU that was sick for the plugin before this one stays so.
	if c.Faults != nil {
		known := make(chan struct{})
		p.background(ctx, func(ctx context.Context) { p.followFaults(ctx, sync.OnceFunc(func() { close(known) })) })
		<-known
	}
	p.checkGPUs(ctx, time.Now())
	if err := p.waitForAPI(ctx, registry); err != nil {
		return nil, nil, err
	}
	// Several claims are prepared at a time: package node takes the locks that it needs.
	p.helper, err = kubeletplugin.Start(ctx, p, kubeletplugin.DriverName(slices.Driver), kubeletplugin.KubeClient(c.Client), kubeletplugin.NodeName(c.NodeName),
		kubeletplugin.PluginDataDirectoryPath(sockets), kubeletplugin.RegistrarDirectoryPath(registry), kubeletplugin.RollingUpdate(types.UID(c.PodUID)),
		kubeletplugin.Serialize(false), kubeletplugin.GRPCInterceptor(p.noticeRegistration))
	if err != nil {
		return nil, nil, fmt.Errorf("serving the kubelet: %w", err)
	}
	p.background(ctx, p.publish)
	p.background(ctx, p.watchGPUs)
	p.background(ctx, p.sweepWhenAsked)
	p.background(ctx, p.watchNode)
	p.background(ctx, p.resizeWhenAsked)
	if c.Users != nil {
		p.background(ctx, p.watchOutside)
	}
	if c.EventsPeriod > 0 {
		p.background(ctx, p.watchRefusals)
	}
	if c.MaxNamespaceMemory > 0 {
		p.background(ctx, p.admitPrepared)
	}
	return p, ctx, nil
}

// publish publishes the GPUs, and again whenever their taints change. It waits for the API server;
// meanwhile running pods can still be ended.
func (p *Plugin) publish(ctx context.Context) {
	p.background(ctx, p.noticePublished)
	for {
		_, _, changed := p.gpus.get()
		resources, err := p.resources()
		if err == nil {
			err = p.helper.PublishResources(ctx, resources)
		}
		if err != nil && ctx.Err() == nil {
			p.stop(fmt.Errorf("publishing the GPUs: %w", err))
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// resources returns what the plugin publishes now.
func (p *Plugin) resources() (resourceslice.DriverResources, error) {
	gpus, err := p.publishable()
	return p.Options.Resources(p.NodeName, gpus), err
}

func (p *Plugin) background(ctx context.Context, work func(context.Context)) {
	p.work.Go(func() { work(ctx) })
}

// Stop stops the driver and waits for it. Claims stay prepared. It reports the refusals that wait
// for the next event, because the next plugin does not know of them.
func (p *Plugin) Stop() {
	p.stop(context.Canceled)
	p.helper.Stop()
	p.work.Wait()
	if p.EventsPeriod > 0 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(p.running), lastWithin)
		defer cancel()
		p.tellRefusals(ctx, time.Now(), true)
	}
}

// PrepareResourceClaims makes the jobs for pods that are about to start. An error becomes an event
// of the pod, and the kubelet tries again.
func (p *Plugin) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	out := map[types.UID]kubeletplugin.PrepareResult{}
	for _, c := range claims {
		begun := time.Now()
		devices, err := p.prepare(c)
		p.metrics.prepared(time.Since(begun), err)
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
	c, err = p.perContainer(c)
	if err != nil {
		return nil, err
	}
	plan, err := claim.Read(c, p.NodeName, p.Node.Devices())
	if err != nil {
		return nil, err
	}
	if memory := plan.Memory(); p.MaxMemory > 0 && memory > p.MaxMemory {
		return nil, fmt.Errorf("claim %s/%s has %d bytes of memory, and a claim may have %d (ask for less, or raise policies.maxMemory of the chart)",
			plan.Namespace, plan.Name, memory, p.MaxMemory)
	}
	if compute := plan.Compute(); p.MaxCompute < 100 && compute > p.MaxCompute {
		return nil, fmt.Errorf("claim %s/%s has %d per cent of compute, and a claim may have %d (ask for less, or raise policies.maxCompute of the chart)",
			plan.Namespace, plan.Name, compute, p.MaxCompute)
	}
	if plan.Priority.Above(p.MaxPriority) {
		return nil, fmt.Errorf("claim %s/%s asks for %s priority, and a claim may have at most %s (leave it out, use a device class that gives it, or change policies.maxPriority of the chart)",
			plan.Namespace, plan.Name, plan.Priority, cmp.Or(p.MaxPriority, limit.PriorityNormal))
	}
	if p.MaxNamespaceMemory > 0 {
		if err := p.admit(plan, p.MaxNamespaceMemory); err != nil {
			return nil, err
		}
	}
	devices, err := p.Node.Prepare(plan)
	if errors.Is(err, node.ErrOverbooked) {
		p.sweepSoon() // the kubelet tries again
	}
	if err != nil {
		return nil, err
	}
	// What the annotations say from now on finds the claim prepared.
	if sizes := p.sizes.Load(); sizes != nil && (*sizes)[plan.UID] != "" {
		p.resizeSoon()
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

// UnprepareResourceClaims removes the jobs of pods that have ended.
func (p *Plugin) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	out := map[types.UID]error{}
	for _, c := range claims {
		p.tellLast(string(c.UID))
		extra := p.hasExtra(string(c.UID))
		err := p.Node.Unprepare(string(c.UID))
		if extra {
			p.gpus.again() // the scheduler gets it back
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Not unprepared", "claim", c.String())
		} else {
			klog.FromContext(ctx).Info("Unprepared", "claim", c.String())
		}
		out[c.UID] = err
	}
	return out, nil
}

// ErrGate is why a plugin stops if the API server does not support shared devices.
var ErrGate = errors.New("the API server dropped fields of the ResourceSlice: turn on the feature gate DRAConsumableCapacity in the API server, " +
	"the scheduler and the controller manager (it is on from Kubernetes 1.36)")

// HandleError handles errors of background goroutines. A persistent error stops the plugin, so that
// it is seen: its pod fails, with the reason in its log.
func (p *Plugin) HandleError(ctx context.Context, err error, msg string) {
	var dropped *resourceslice.DroppedFieldsError
	switch {
	case errors.As(err, &dropped) && strings.Join(dropped.DisabledFeatures(), " ") == "DRADeviceTaints":
		klog.FromContext(ctx).Info("The API server does not have the feature gate DRADeviceTaints: GPUs with a taint are not published")
		p.gpus.withhold()
	case errors.As(err, &dropped):
		// Slices that were published without these fields would allocate each device as a whole.
		p.stop(fmt.Errorf("%w: %w", ErrGate, err))
	case !errors.Is(err, kubeletplugin.ErrRecoverable), apierrors.IsInvalid(err):
		p.stop(fmt.Errorf("%s: %w", msg, err))
	default:
		klog.FromContext(ctx).Error(err, msg)
	}
}

// sweepRetry is the pause before the API server is asked again.
const sweepRetry = 30 * time.Second

// sweepSoon requests a sweep of claims that do not exist any more.
func (p *Plugin) sweepSoon() {
	select {
	case p.sweep <- struct{}{}:
	default: // a sweep is already requested
	}
}

// sweepWhenAsked removes the remains of claims that do not exist any more, once after each start
// and whenever a claim does not fit. If the API server prevents that, it tries again later.
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
		if pause(ctx, sweepRetry) {
			p.sweepSoon()
		}
	}
}

// gone reports whether no pod here can use a claim, because it does not exist any more or has no
// device of this node.
func (p *Plugin) gone(ctx context.Context, c claim.Plan) (bool, error) {
	if c.Name == "" {
		return true, nil // its namespace and name are unknown
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
	return true, nil // it was allocated again, on another node
}

// podsWithin bounds how long a claim waits for its pods. It is less than half of what the kubelet waits.
const podsWithin = 20 * time.Second

// containers returns the containers of pods that use a claim, by the pods' UIDs. A pod that does not
// exist any more starts none.
func (p *Plugin) containers(namespace, claimName string, pods []claim.Pod) (map[string][]node.Container, error) {
	ctx, cancel := context.WithTimeout(p.running, podsWithin)
	defer cancel()
	out := map[string][]node.Container{}
	for _, pod := range pods {
		now, err := p.Client.CoreV1().Pods(namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, fmt.Errorf("reading pod %s, whose containers might use two claims: %w (the kubelet tries again)", pod.Name, err)
		case string(now.UID) == pod.UID:
			out[pod.UID] = containersOf(now, claimName)
		}
	}
	return out, nil
}

// containersOf returns the containers of a pod that use a claim.
func containersOf(pod *corev1.Pod, claimName string) (out []node.Container) {
	uses := map[string]bool{} // the pod's names for the claim
	for _, c := range pod.Spec.ResourceClaims {
		uses[c.Name] = c.ResourceClaimName != nil && *c.ResourceClaimName == claimName
	}
	for _, s := range pod.Status.ResourceClaimStatuses {
		uses[s.Name] = uses[s.Name] || s.ResourceClaimName != nil && *s.ResourceClaimName == claimName
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil && s.ResourceClaimName == claimName {
		return extendedContainersOf(s)
	}
	for _, c := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
		own, all := node.Container{Name: c.Name}, false
		for _, r := range c.Resources.Claims {
			if uses[r.Name] {
				own.Requests, all = append(own.Requests, r.Request), all || r.Request == ""
			}
		}
		if len(own.Requests) == 0 {
			continue
		}
		if all {
			own.Requests = nil
		}
		out = append(out, own)
	}
	return out
}
