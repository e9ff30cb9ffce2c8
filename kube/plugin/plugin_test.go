package plugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	health "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"ration/check/expect"
	"ration/internal/embedded"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/kube/claim"
	"ration/kube/node"
	kubeslices "ration/kube/slices"
)

const nodeName = "n"

// cluster is a node with a plugin, its kubelet, and the API server.
type cluster struct {
	t      testing.TB
	client *fake.Clientset
	config Config
	plugin *Plugin
	dra    drapb.DRAPluginClient
	health health.DRAResourceHealthClient
}

func newCluster(t testing.TB, objects ...runtime.Object) *cluster {
	t.Helper()
	for _, b := range []embedded.Bundle{embedded.Ration, embedded.FakeGPU} {
		if err := b.Built(); err != nil {
			t.Skip(err)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("the jobs of claims are root's")
	}
	base, err := os.MkdirTemp("", "rk") // a socket's path has to be short
	expect.OK(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	t.Setenv("RATION_DIR", filepath.Join(base, "jobs"))
	t.Setenv("FAKEGPU_QUIET", "1")
	gpus, err := node.FakeGPUs("h200x2")
	expect.OK(t, err)
	objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "node-uid"}})
	c := &cluster{t: t, client: newClient(objects...)}
	c.config = Config{Node: &node.Node{GPUs: gpus, FakeGPU: "h200x2", State: filepath.Join(base, "state"), CDI: filepath.Join(base, "cdi")},
		NodeName: nodeName, KubeletRoot: base, Client: c.client, Pods: true, MaxCompute: 100}
	t.Cleanup(c.end)
	return c
}

// end stops the plugin and removes all that it prepared.
func (c *cluster) end() {
	c.stop()
	_, err := c.config.Node.Sweep(func(claim.Plan) (bool, error) { return true, nil })
	expect.Equal(c.t, err, nil)
}

func (c *cluster) start() {
	c.t.Helper()
	p, _, err := Start(c.t.Context(), c.config)
	expect.OK(c.t, err)
	c.plugin = p
	c.register()
}

func (c *cluster) stop() {
	if c.plugin != nil {
		c.plugin.Stop()
		c.plugin = nil
	}
}

func (c *cluster) dial(path string) *grpc.ClientConn {
	c.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, path string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}))
	expect.OK(c.t, err)
	c.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// register finds the plugin as the kubelet does: by the socket that appears in its registry.
func (c *cluster) register() {
	c.t.Helper()
	sockets, err := filepath.Glob(filepath.Join(c.config.KubeletRoot, "plugins_registry", "*.sock"))
	expect.Must(c.t, err == nil && len(sockets) == 1, "sockets in the registry", sockets, err)
	registration := registerapi.NewRegistrationClient(c.dial(sockets[0]))
	info, err := registration.GetInfo(c.t.Context(), &registerapi.InfoRequest{})
	expect.OK(c.t, err)
	if info.Type != registerapi.DRAPlugin || info.Name != kubeslices.Driver || !slices.Contains(info.SupportedVersions, drapb.DRAPluginService) {
		c.t.Errorf("got %v", info)
	}
	_, err = registration.NotifyRegistrationStatus(c.t.Context(), &registerapi.RegistrationStatus{PluginRegistered: true})
	expect.OK(c.t, err)
	c.dra, c.health = drapb.NewDRAPluginClient(c.dial(info.Endpoint)), health.NewDRAResourceHealthClient(c.dial(info.Endpoint))
}

func (c *cluster) prepare(claims ...*resourceapi.ResourceClaim) map[string]*drapb.NodePrepareResourceResponse {
	c.t.Helper()
	r := &drapb.NodePrepareResourcesRequest{}
	for _, cl := range claims {
		r.Claims = append(r.Claims, &drapb.Claim{Namespace: cl.Namespace, Name: cl.Name, Uid: string(cl.UID)})
	}
	out, err := c.dra.NodePrepareResources(c.t.Context(), r)
	expect.OK(c.t, err)
	return out.Claims
}

func (c *cluster) unprepare(claims ...*resourceapi.ResourceClaim) {
	c.t.Helper()
	r := &drapb.NodeUnprepareResourcesRequest{}
	for _, cl := range claims {
		r.Claims = append(r.Claims, &drapb.Claim{Namespace: cl.Namespace, Name: cl.Name, Uid: string(cl.UID)})
	}
	out, err := c.dra.NodeUnprepareResources(c.t.Context(), r)
	expect.OK(c.t, err)
	for uid, r := range out.Claims {
		expect.Equal(c.t, r.Error, "", "claim", uid)
	}
}

func newClaim(c *cluster, number int, memory string) *resourceapi.ResourceClaim {
	share := types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", number))
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("claim%d", number), UID: types.UID(fmt.Sprintf("11111111-0000-4000-8000-%012d", number))},
		Status: resourceapi.ResourceClaimStatus{
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod", UID: "pod-uid"}},
			Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
				Request: "gpu", Driver: kubeslices.Driver, Pool: nodeName, Device: c.config.Node.GPUs[0].Name(), ShareID: &share,
				ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{kubeslices.Memory: resource.MustParse(memory), kubeslices.Compute: resource.MustParse("0")},
			}}}},
		},
	}
}

func (c *cluster) add(claims ...*resourceapi.ResourceClaim) {
	c.t.Helper()
	for _, cl := range claims {
		_, err := c.client.ResourceV1().ResourceClaims(cl.Namespace).Create(c.t.Context(), cl, metav1.CreateOptions{})
		expect.OK(c.t, err)
	}
}

func (c *cluster) records() int {
	c.t.Helper()
	records, err := c.config.Node.Records()
	expect.OK(c.t, err)
	return len(records)
}

// The kubelet's calls, in the order and with the repetitions that it makes them.
func TestKubelet(t *testing.T) {
	claimName := "claim1"
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: "pod-uid"},
		Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claimName}},
			Containers: []corev1.Container{{Name: "train", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}}, {Name: "log"}}}}
	c := newCluster(t, pod)
	c.start()
	good, bad := newClaim(c, 1, "10Gi"), newClaim(c, 2, "10Gi")
	bad.Status.Allocation.Devices.Results[0].ConsumedCapacity = nil // the feature gate is off
	c.add(good, bad)
	for range 2 {
		got := c.prepare(good, bad)
		r := got[string(bad.UID)]
		expect.True(t, strings.Contains(r.Error, "DRAConsumableCapacity") && len(r.Devices) == 0,
			"a claim of which nobody knows how much it is", r)
		r = got[string(good.UID)]
		expect.Must(t, r.Error == "" && len(r.Devices) == 1, r)
		if d := r.Devices[0]; d.PoolName != nodeName || d.DeviceName != c.config.Node.GPUs[0].Name() || !slices.Equal(d.RequestNames, []string{"gpu"}) ||
			!slices.Equal(d.CdiDeviceIds, []string{"gpu.ration/claim=" + string(good.UID)}) || d.GetShareId() == "" {
			t.Errorf("got %v", d)
		}
	}
	k := job.ReadKubernetes("k8s-" + string(good.UID))
	expect.True(t, k != nil && len(k.Pods) == 1 && slices.Equal(k.Pods[0].Containers, []string{"train"}), "the job knows", k)
	expect.Equal(t, c.records(), 1, "claims are prepared, want one")

	// The claims are gone from the API server, and the plugin is another, when they are unprepared.
	c.stop()
	for _, cl := range []*resourceapi.ResourceClaim{good, bad} {
		expect.OK(t, c.client.ResourceV1().ResourceClaims("ns").Delete(t.Context(), cl.Name, metav1.DeleteOptions{}))
	}
	c.start()
	c.unprepare(good, bad)
	c.unprepare(good)
	expect.Equal(t, c.records(), 0, "claims are prepared")
}

// twice returns a claim that has the same of a second device.
func twice(c *cluster, claim *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	results := &claim.Status.Allocation.Devices.Results
	second := (*results)[0]
	second.Request, second.Device = "second", c.config.Node.GPUs[1].Name()
	*results = append(*results, second)
	return claim
}

// The bound of a claim is a sum: several requests do not get more, even if admission let them pass.
func TestMaxMemory(t *testing.T) {
	c := newCluster(t)
	c.config.MaxMemory = 12 << 30
	c.start()
	within, beyond := newClaim(c, 1, "12Gi"), twice(c, newClaim(c, 2, "12Gi"))
	c.add(within, beyond)
	got := c.prepare(within, beyond)
	expect.Equal(t, got[string(within.UID)].Error, "")
	expect.True(t, strings.Contains(got[string(beyond.UID)].Error, "a claim may have"), got[string(beyond.UID)].Error)
}

// So is that of compute.
func TestMaxCompute(t *testing.T) {
	c := newCluster(t)
	c.config.MaxCompute = 50
	c.start()
	half := func(number int) *resourceapi.ResourceClaim {
		claim := newClaim(c, number, "1Gi")
		claim.Status.Allocation.Devices.Results[0].ConsumedCapacity[kubeslices.Compute] = resource.MustParse("50")
		return claim
	}
	within, beyond := half(1), twice(c, half(2))
	c.add(within, beyond)
	got := c.prepare(within, beyond)
	expect.Equal(t, got[string(within.UID)].Error, "")
	expect.True(t, strings.Contains(got[string(beyond.UID)].Error, "has 100 per cent of compute, and a claim may have 50"), got[string(beyond.UID)].Error)
}

// A claim asks for high priority only where the operator allows it, even if admission let it pass. A
// class may give it.
func TestMaxPriority(t *testing.T) {
	parameters := runtime.RawExtension{Raw: []byte(`{"apiVersion":"gpu.ration/v1","kind":"RationConfig","priority":"high"}`)}
	for _, highest := range []limit.Priority{0, limit.PriorityHigh} {
		c := newCluster(t)
		c.config.MaxPriority = highest
		c.start()
		asks, given := newClaim(c, 1, "1Gi"), newClaim(c, 2, "1Gi")
		for claim, source := range map[*resourceapi.ResourceClaim]resourceapi.AllocationConfigSource{asks: resourceapi.AllocationConfigSourceClaim, given: resourceapi.AllocationConfigSourceClass} {
			claim.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{Source: source, DeviceConfiguration: resourceapi.DeviceConfiguration{
				Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: kubeslices.Driver, Parameters: parameters}}}}
		}
		c.add(asks, given)
		got := c.prepare(asks, given)
		expect.Equal(t, got[string(given.UID)].Error, "")
		refused := got[string(asks.UID)].Error
		expect.True(t, (refused == "") == (highest != 0) && (refused == "" || strings.Contains(refused, "asks for high priority, and a claim may have at most normal")), refused)
	}
}

// Claims that were deleted, deallocated, replaced or allocated to another node while no plugin ran are removed at its start; others
// are not.
func TestOrphans(t *testing.T) {
	c := newCluster(t)
	c.start()
	var all []*resourceapi.ResourceClaim
	for i := range 5 {
		all = append(all, newClaim(c, i, "1Gi"))
	}
	c.add(all...)
	for uid, r := range c.prepare(all...) {
		expect.Must(t, r.Error == "", "claim", uid, r.Error)
	}
	c.stop()
	claims := c.client.ResourceV1().ResourceClaims("ns")
	deallocated := all[1].DeepCopy()
	deallocated.Status = resourceapi.ResourceClaimStatus{}
	_, err := claims.UpdateStatus(t.Context(), deallocated, metav1.UpdateOptions{})
	another := all[2].DeepCopy()
	another.UID = "22222222-0000-4000-8000-000000000000"
	elsewhere := all[4].DeepCopy()
	elsewhere.Status.Allocation.Devices.Results[0].Pool = "another-node"
	_, e := claims.UpdateStatus(t.Context(), elsewhere, metav1.UpdateOptions{})
	err = errors.Join(err, e, claims.Delete(t.Context(), all[0].Name, metav1.DeleteOptions{}), claims.Delete(t.Context(), all[2].Name, metav1.DeleteOptions{}))
	expect.OK(t, err)
	c.add(another)
	p := &Plugin{Config: c.config}
	removed, err := c.config.Node.Sweep(func(cl claim.Plan) (bool, error) { return p.gone(t.Context(), cl) })
	expect.True(t, err == nil && len(removed) == 4 && !slices.Contains(removed, string(all[3].UID)), "removed", removed, err)
	expect.Equal(t, c.records(), 1, "claims are left, want one")
}

// The node's GPUs are published, with a policy for each capacity.
func TestPublishes(t *testing.T) {
	c := newCluster(t)
	watch, err := c.client.ResourceV1().ResourceSlices().Watch(t.Context(), metav1.ListOptions{})
	expect.OK(t, err)
	c.start()
	slice := (<-watch.ResultChan()).Object.(*resourceapi.ResourceSlice)
	expect.Must(t, slice.Spec.Driver == kubeslices.Driver && *slice.Spec.NodeName == nodeName && slice.Spec.Pool.Name == nodeName && len(slice.Spec.Devices) == 2,
		"got", slice.Spec)
	for _, d := range slice.Spec.Devices {
		expect.True(t, d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations && *d.Attributes[kubeslices.Architecture].StringValue == "Hopper", "got", d)
		for name, capacity := range d.Capacity {
			expect.True(t, capacity.RequestPolicy != nil && capacity.RequestPolicy.Default != nil && capacity.RequestPolicy.ValidRange != nil,
				name, "has no policy: who does not name it takes all of it")
		}
	}
}

// Where the API server drops what says that devices are shared, the plugin ends and says so.
func TestGateOff(t *testing.T) {
	c := newCluster(t)
	ctx, stop := context.WithCancelCause(t.Context())
	p := &Plugin{Config: c.config, stop: stop}
	gpus := slices.Clone(c.config.Node.GPUs)
	gpus[0].Taints = []resourceapi.DeviceTaint{{Key: kubeslices.TaintUnhealthy, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	wanted := &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Devices: c.config.Options.Resources(nodeName, gpus).Pools[nodeName].Slices[0].Devices}}
	got := wanted.DeepCopy()
	got.Spec.Devices[0].Taints = nil
	p.HandleError(ctx, &resourceslice.DroppedFieldsError{PoolName: nodeName, DesiredSlice: wanted, ActualSlice: got}, "publishing")
	expect.OK(t, context.Cause(ctx)) // what is handed out is right
	for i := range got.Spec.Devices {
		got.Spec.Devices[i].AllowMultipleAllocations = nil
	}
	p.HandleError(ctx, &resourceslice.DroppedFieldsError{PoolName: nodeName, DesiredSlice: wanted, ActualSlice: got}, "publishing")
	err := context.Cause(ctx)
	expect.True(t, errors.Is(err, ErrGate) && strings.Contains(err.Error(), "DRAConsumableCapacity"), err)
}

func TestNews(t *testing.T) {
	var r refusals
	start := time.Unix(1_000_000, 0)
	for i, tt := range []struct {
		claim   string
		refused uint64
		after   time.Duration
		last    bool
		want    uint64
	}{
		{"u", 5, 0, false, 0},                  // old
		{"u", 5, 10 * time.Second, false, 0},   // none
		{"u", 6, 20 * time.Second, false, 1},   // one
		{"u", 9, 30 * time.Second, false, 0},   // not yet
		{"u", 12, 79 * time.Second, false, 0},  // not yet
		{"u", 15, 81 * time.Second, false, 9},  // all of them
		{"u", 15, 200 * time.Second, false, 0}, // none
		{"u", 1, 300 * time.Second, false, 0},  // another job, as old as this look
		{"u", 2, 400 * time.Second, false, 1},  // one of that
		{"u", 4, 410 * time.Second, true, 2},   // the rest, whenever it was last said
		{"u", 4, 411 * time.Second, true, 0},   // none
		{"v", 3, 500 * time.Second, false, 3},  // refused since it was prepared, before the first look at it
		{"w", 1, 500 * time.Second, true, 1},   // likewise, and there is no other look
	} {
		expect.Equal(t, r.news(tt.claim, tt.refused, start.Add(tt.after), tt.last), tt.want, "look", i, "are new")
		r.forget(map[string]bool{"u": true, "v": true})
	}
	if r.forget(map[string]bool{}); len(r.said) != 0 {
		t.Error("a claim that is gone is remembered")
	}
}

// While the API server does not answer, pods are ended all the same, and the plugin can be stopped.
func TestAPIServerDown(t *testing.T) {
	c := newCluster(t)
	c.start()
	cl := newClaim(c, 1, "1Gi")
	c.add(cl)
	r := c.prepare(cl)[string(cl.UID)]
	expect.Must(t, r.Error == "", r.Error)
	c.stop()
	down := errors.New("no answer")
	c.client.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, down })
	c.start()
	call := &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{{Namespace: cl.Namespace, Name: cl.Name, Uid: string(cl.UID)}}}
	answer, err := c.dra.NodePrepareResources(t.Context(), call)
	expect.True(t, err != nil && strings.Contains(err.Error(), down.Error()), "a claim that nobody has read is prepared", answer, err)
	expect.Equal(t, c.records(), 1, "claims are left: the answer that there was none was taken for one")
	c.unprepare(cl)
	expect.Equal(t, c.records(), 0, "claims are prepared")
}

// The kubelet is told of each GPU's health as soon as it asks, and the stream ends with the plugin: a kubelet that
// has none asks again every few seconds, and writes that down each time.
func TestHealth(t *testing.T) {
	c := newCluster(t)
	gpus := c.config.Node.GPUs
	why := strings.Repeat("it fell off the bus; ", 100)
	c.config.Sick = func(uuids []string) (map[string]string, map[string]bool) {
		expect.True(t, slices.Equal(uuids, []string{gpus[0].UUID, gpus[1].UUID}), "asked about", uuids)
		return map[string]string{gpus[1].UUID: why}, nil
	}
	c.start()
	stream, err := c.health.NodeWatchResources(t.Context(), &health.NodeWatchResourcesRequest{})
	expect.OK(t, err)
	got, err := stream.Recv()
	expect.Must(t, err == nil && len(got.Devices) == 2, got, err)
	for i, d := range got.Devices {
		if d.Device.PoolName != nodeName || d.Device.DeviceName != gpus[i].Name() || d.LastUpdatedTime == 0 || d.HealthCheckTimeoutSeconds <= int64(healthPeriod/time.Second) {
			t.Errorf("got %v", d)
		}
	}
	if a, b := got.Devices[0], got.Devices[1]; a.Health != health.HealthStatus_HEALTHY || a.Message != "" || b.Health != health.HealthStatus_UNHEALTHY || b.Message != why[:maxMessage] {
		t.Errorf("got %v and %v", a, b)
	}
	c.stop()
	more, err := stream.Recv()
	expect.True(t, err != nil, "a plugin that has ended says", more)
}

// What is left of a claim that the kubelet has forgotten is in the way of the next one only until that is asked for: no plugin has
// to be started again.
func TestForgottenClaimMakesRoom(t *testing.T) {
	c := newCluster(t)
	c.start()
	all := fmt.Sprint(c.config.Node.GPUs[0].Capacity())
	first, second := newClaim(c, 1, all), newClaim(c, 2, all)
	c.add(first, second)
	r := c.prepare(first)[string(first.UID)]
	expect.Must(t, r.Error == "", r.Error)
	r = c.prepare(second)[string(second.UID)]
	expect.Must(t, strings.Contains(r.Error, "overbooked"), r)
	expect.OK(t, c.client.ResourceV1().ResourceClaims("ns").Delete(t.Context(), first.Name, metav1.DeleteOptions{}))
	for c.prepare(second)[string(second.UID)].Error != "" { // as the kubelet does, until the time for all tests is over
	}
	expect.Equal(t, c.records(), 1, "claims are prepared, want one")
}

// Of a claim with many pods, each is asked for once: the next claim waits for it.
func TestPodsOfAClaim(t *testing.T) {
	c := newCluster(t)
	c.start()
	cl := newClaim(c, 1, "1Gi")
	for i := range 100 {
		cl.Status.ReservedFor = append(cl.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: fmt.Sprint("p", i), UID: types.UID(fmt.Sprint("u", i))})
	}
	c.add(cl)
	asked := 0
	c.client.PrependReactor("get", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		asked++
		name := a.(clienttesting.GetAction).GetName()
		claimName := cl.Name
		return true, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(strings.Replace(name, "p", "u", 1))}, Spec: corev1.PodSpec{
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claimName}},
			Containers:     []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}}}}}, nil
	})
	for range 3 {
		r := c.prepare(cl)[string(cl.UID)]
		expect.Must(t, r.Error == "", r.Error)
	}
	// The first is another's by now, as its UID says, and is asked for each time.
	want := len(cl.Status.ReservedFor) + 2
	expect.Equal(t, asked, want, "questions to the API server")
	k := job.ReadKubernetes("k8s-" + string(cl.UID))
	expect.True(t, k != nil && len(k.Pods) == job.MaxPods && slices.Equal(k.Pods[job.MaxPods-1].Containers, []string{"main"}),
		"the job knows", k)
}
