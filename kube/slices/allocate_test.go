package slices

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"ration/check/expect"
)

const gib = 1 << 30

// classes are the device classes of a cluster.
type classes map[string]*resourceapi.DeviceClass

func (c classes) List() ([]*resourceapi.DeviceClass, error)         { return nil, nil }
func (c classes) Get(name string) (*resourceapi.DeviceClass, error) { return c[name], nil }

// scheduler is the scheduler's own allocator, with the slices of some nodes.
type scheduler struct {
	t       testing.TB
	classes classes
	slices  []*resourceapi.ResourceSlice
	nodes   []*corev1.Node
	state   structured.AllocatedState
	cache   *cel.Cache
	used    map[structured.DeviceID]uint64
	compute map[structured.DeviceID]int64
}

func newScheduler(t testing.TB, o Options, nodes, gpus int, memory uint64) *scheduler {
	s := &scheduler{t: t, cache: cel.NewCache(10, cel.Features{EnableConsumableCapacity: true}), used: map[structured.DeviceID]uint64{}, compute: map[structured.DeviceID]int64{},
		classes: classes{Driver: {ObjectMeta: metav1.ObjectMeta{Name: Driver}, Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{
			{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "` + Driver + `"`}}}}}},
		state: structured.AllocatedState{AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
			AggregatedCapacity: structured.NewConsumedCapacityCollection()}}
	for n := range nodes {
		name := fmt.Sprintf("node%d", n)
		var list []GPU
		for g := range gpus {
			list = append(list, GPU{Index: g, UUID: fmt.Sprintf("GPU-%08d-0000-0000-0000-%012d", n, g), Model: "NVIDIA H200", Capability: [2]int{9, 0}, DriverVersion: "580.82.07", CUDA: 13000, Memory: memory})
		}
		pool := o.Resources(name, list).Pools[name]
		s.nodes = append(s.nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		s.slices = append(s.slices, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{Driver: Driver, NodeName: &name,
			Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: 1}, Devices: pool.Slices[0].Devices}})
	}
	return s
}

// request returns a claim; an empty amount is not asked for.
func request(memory, compute string, count int64) *resourceapi.ResourceClaim {
	amounts := map[resourceapi.QualifiedName]resource.Quantity{}
	for name, value := range map[resourceapi.QualifiedName]string{Memory: memory, Compute: compute} {
		if value != "" {
			amounts[name] = resource.MustParse(value)
		}
	}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: Driver,
		AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count, Capacity: &resourceapi.CapacityRequirements{Requests: amounts}}}}
	if count > 1 {
		uuid := resourceapi.FullyQualifiedName(Driver + "/uuid")
		claim.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{Requests: []string{"gpu"}, DistinctAttribute: &uuid}}
	}
	return claim
}

// place allocates a claim on the first node that can, and checks that no device is handed out twice.
func (s *scheduler) place(claim *resourceapi.ResourceClaim) (results []resourceapi.DeviceRequestAllocationResult) {
	s.t.Helper()
	results = s.allocate(claim, structured.Features{ConsumableCapacity: true})
	for _, r := range results {
		s.book(r, 1)
	}
	return results
}

// allocate allocates a claim on the first node that can, with features of the scheduler.
func (s *scheduler) allocate(claim *resourceapi.ResourceClaim, features structured.Features) []resourceapi.DeviceRequestAllocationResult {
	s.t.Helper()
	a, err := structured.NewAllocator(context.Background(), features, s.state, s.classes, s.slices, s.cache)
	expect.OK(s.t, err)
	for _, node := range s.nodes {
		found, err := a.Allocate(context.Background(), node, []*resourceapi.ResourceClaim{claim})
		expect.OK(s.t, err)
		if len(found) == 1 {
			return found[0].Devices.Results
		}
	}
	return nil
}

// A scheduler that does not know of shared devices, as KAI before 2026-08, hands out a whole device without an amount. The plugin
// prepares no such claim (TestFailsClosed of check/kube/node).
func TestAllocateWithoutTheFeature(t *testing.T) {
	s := newScheduler(t, Options{}, 1, 1, 80*gib)
	got := s.allocate(request("10Gi", "", 1), structured.Features{})
	expect.True(t, len(got) == 1 && got[0].ShareID == nil && len(got[0].ConsumedCapacity) == 0, got)
}

// book adds what a result has of its device to what is handed out, or with -1 takes it away.
func (s *scheduler) book(r resourceapi.DeviceRequestAllocationResult, sign int64) {
	s.t.Helper()
	id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
	memory, compute := r.ConsumedCapacity[Memory], r.ConsumedCapacity[Compute]
	if s.used[id] += uint64(sign * memory.Value()); s.used[id] > s.capacity(id) {
		s.t.Fatalf("%d bytes of %v are handed out, and it has %d", s.used[id], id, s.capacity(id))
	}
	s.compute[id] += sign * compute.Value()
	expect.Must(s.t, s.compute[id] <= 100, s.compute[id], "% of", id, "are handed out")
	consumed := structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity)
	if shared := structured.MakeSharedDeviceID(id, r.ShareID); sign > 0 {
		s.state.AllocatedSharedDeviceIDs.Insert(shared)
		s.state.AggregatedCapacity.Insert(consumed)
	} else {
		s.state.AllocatedSharedDeviceIDs.Delete(shared)
		s.state.AggregatedCapacity.Remove(consumed)
	}
}

func (s *scheduler) capacity(id structured.DeviceID) uint64 {
	for _, slice := range s.slices {
		for _, d := range slice.Spec.Devices {
			if structured.MakeDeviceID(Driver, slice.Spec.Pool.Name, d.Name) == id {
				q := d.Capacity[Memory]
				return uint64(q.Value.Value())
			}
		}
	}
	s.t.Fatalf("no device %v", id)
	return 0
}

// What fits is placed, and what does not is not; amounts are rounded as the policy says.
func TestAllocate(t *testing.T) {
	for name, tt := range map[string]struct {
		options Options
		asked   [][2]string // memory and compute
		got     []string    // memory, or "" where it is not placed
	}{
		"to the byte":         {Options{}, [][2]string{{"10Gi", ""}, {"50Gi", ""}, {"30Gi", ""}, {"20Gi", ""}, {"1", ""}}, []string{"10Gi", "50Gi", "", "20Gi", ""}},
		"rounded up":          {Options{}, [][2]string{{"1000000000", ""}, {"10", ""}, {"0", ""}, {"-5Gi", ""}}, []string{"954Mi", "256Mi", "256Mi", "256Mi"}},
		"larger than it is":   {Options{}, [][2]string{{"81Gi", ""}, {"80Gi", ""}}, []string{"", "80Gi"}},
		"the whole":           {Options{}, [][2]string{{"", ""}, {"256Mi", ""}}, []string{"80Gi", ""}},
		"the whole is not":    {Options{}, [][2]string{{"256Mi", ""}, {"", ""}}, []string{"256Mi", ""}},
		"a default":           {Options{DefaultMemory: 8*gib - 1}, [][2]string{{"", ""}, {"72Gi", ""}, {"", ""}}, []string{"8Gi", "72Gi", ""}},
		"compute":             {Options{}, [][2]string{{"1Gi", "60"}, {"1Gi", "50"}, {"1Gi", "40"}, {"1Gi", "1"}, {"1Gi", ""}}, []string{"1Gi", "", "1Gi", "", "1Gi"}},
		"more than all of it": {Options{}, [][2]string{{"1Gi", "101"}, {"1Gi", "100"}}, []string{"", "1Gi"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScheduler(t, tt.options, 1, 1, 80*gib+Step/2)
			for i, asked := range tt.asked {
				got := ""
				if results := s.place(request(asked[0], asked[1], 1)); results != nil {
					q := results[0].ConsumedCapacity[Memory]
					got = q.String()
				}
				expect.Equal(t, got, tt.got[i], "request", i, "for", asked)
			}
		})
	}
}

// Two GPUs are two different ones.
func TestAllocateTwo(t *testing.T) {
	s := newScheduler(t, Options{}, 1, 2, 80*gib)
	first := s.place(request("50Gi", "", 2))
	expect.True(t, len(first) == 2 && first[0].Device != first[1].Device, first)
	again := s.place(request("50Gi", "", 2))
	expect.True(t, again == nil, again)
	// The devices of one request are different ones, even where one GPU has enough for both.
	free := request("10Gi", "", 2)
	free.Spec.Devices.Constraints = nil
	one := newScheduler(t, Options{}, 1, 1, 80*gib).place(free)
	expect.True(t, one == nil, one)
}

// A burst fills all devices to the last byte.
func TestAllocateBurst(t *testing.T) {
	s := newScheduler(t, Options{}, 5, 4, 40*gib)
	placed := 0
	for range 1000 {
		if s.place(request("1Gi", "2", 1)) != nil {
			placed++
		}
	}
	want := 5 * 4 * 40
	expect.Equal(t, placed, want, "claims are placed")
	for id, used := range s.used {
		expect.Equal(t, used, 40*gib, id, "bytes handed out")
	}
}

// After 1,000 claims of all sizes have come and gone, what is free in one piece can be handed out, and
// nothing is lost.
func TestAllocateFragmentation(t *testing.T) {
	s := newScheduler(t, Options{}, 2, 2, 80*gib)
	random := rand.New(rand.NewPCG(1, 2))
	var live [][]resourceapi.DeviceRequestAllocationResult
	for range 1000 {
		if len(live) > 0 && random.IntN(3) == 0 {
			i := random.IntN(len(live))
			for _, r := range live[i] {
				s.book(r, -1)
			}
			live = append(live[:i], live[i+1:]...)
		}
		size := 1 + random.Uint64N(30<<10)
		results := s.place(request(fmt.Sprintf("%dMi", size), fmt.Sprint(random.IntN(20)), 1))
		if results != nil {
			live = append(live, results)
			continue
		}
		need := max(size*Step, LeastMemory)
		for _, slice := range s.slices {
			for _, d := range slice.Spec.Devices {
				id := structured.MakeDeviceID(Driver, slice.Spec.Pool.Name, d.Name)
				expect.Must(t, s.capacity(id)-s.used[id] < need || s.compute[id] > 80, need, "bytes were refused, and", id, "has", s.capacity(id)-s.used[id], "free")
			}
		}
	}
	for _, results := range live {
		for _, r := range results {
			s.book(r, -1)
		}
	}
	for range 4 {
		expect.True(t, s.place(request("", "100", 1)) != nil, "a whole device is free, and is not handed out")
	}
}
