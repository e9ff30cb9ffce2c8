package claim

import (
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"ration/check/expect"
	"ration/internal/limit"
	"ration/kube/slices"
)

const gib = 1 << 30

var gpus = []slices.GPU{
	{Index: 0, UUID: "GPU-00000000-0000-0000-0000-000000000000", Memory: 80 * gib},
	{Index: 1, UUID: "GPU-11111111-1111-1111-1111-111111111111", Memory: 80 * gib},
}

func result(request string, gpu int, memory, compute string) resourceapi.DeviceRequestAllocationResult {
	id := types.UID("share-" + request)
	return resourceapi.DeviceRequestAllocationResult{Request: request, Driver: slices.Driver, Pool: "n", Device: gpus[gpu].Name(), ShareID: &id,
		ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{slices.Memory: resource.MustParse(memory), slices.Compute: resource.MustParse(compute)}}
}

func allocated(results ...resourceapi.DeviceRequestAllocationResult) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "6b0e6a3c-8d53-4a76-9d0e-0123456789ab"},
		Status: resourceapi.ResourceClaimStatus{
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "u"}, {APIGroup: "x", Resource: "others", Name: "o"}},
			Allocation:  &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}},
		},
	}
}

func config(c *resourceapi.ResourceClaim, source resourceapi.AllocationConfigSource, parameters string, requests ...string) {
	devices := &c.Status.Allocation.Devices
	devices.Config = append(devices.Config, resourceapi.DeviceAllocationConfiguration{Source: source, Requests: requests,
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: slices.Driver, Parameters: runtime.RawExtension{Raw: []byte(parameters)}}}})
}

const head = `{"apiVersion":"gpu.ration/v1","kind":"RationConfig"`

func TestRead(t *testing.T) {
	foreign := result("net", 0, "1Gi", "0")
	foreign.Driver, foreign.ConsumedCapacity = "net.example.com", nil
	p, err := Read(allocated(result("a", 0, "10Gi", "30"), foreign, result("b", 1, "20Gi", "0"), result("c", 0, "5Gi", "20")), "n", gpus)
	expect.OK(t, err)
	expect.Must(t, len(p.Rations) == 1 && len(p.Results) == 3 && len(p.Pods) == 1 && p.Pods[0].Name == "p", p)
	shares := p.Rations[0].Shares
	expect.True(t, len(shares) == 2 && shares[0].Memory == 15*gib && shares[0].Compute == 50 && shares[1].Memory == 20*gib && shares[1].Index == 1,
		shares)
}

func TestReadPerRequest(t *testing.T) {
	c := allocated(result("a", 0, "10Gi", "0"), result("b/big", 0, "20Gi", "0"))
	config(c, resourceapi.AllocationConfigSourceClass, head+`,"computeMax":50}`)
	config(c, resourceapi.AllocationConfigSourceClaim, head+`,"sharing":"Request"}`)
	config(c, resourceapi.AllocationConfigSourceClaim, head+`,"computeMax":20}`, "b")
	p, err := Read(c, "n", gpus)
	expect.OK(t, err)
	expect.Must(t, len(p.Rations) == 2 && p.Rations[0].Request == "a" && p.Rations[1].Request == "b" && p.Results[1].Ration == 1, p)
	a, b := p.Rations[0].Shares[0], p.Rations[1].Shares[0]
	expect.True(t, a.ComputeMax == 50 && b.ComputeMax == 20 && b.Memory == 20*gib, a, b)
}

// A job has the lowest priority of its requests. The plan says what the claim itself asks for.
func TestReadPriority(t *testing.T) {
	type set struct {
		source     resourceapi.AllocationConfigSource
		parameters string
		requests   []string
	}
	class, own := resourceapi.AllocationConfigSourceClass, resourceapi.AllocationConfigSourceClaim
	const high, normal, low = limit.PriorityHigh, limit.PriorityNormal, limit.PriorityLow
	for name, tt := range map[string]struct {
		configs []set
		asked   limit.Priority
		want    []limit.Priority // of the rations
	}{
		"none":                 {nil, 0, []limit.Priority{0}},
		"of the class":         {[]set{{class, `"priority":"high"`, nil}}, 0, []limit.Priority{high}},
		"the claim's counts":   {[]set{{own, `"priority":"low"`, nil}, {class, `"priority":"high"`, nil}}, low, []limit.Priority{low}},
		"of one class":         {[]set{{class, `"priority":"high"`, []string{"a"}}}, 0, []limit.Priority{0}},
		"of two classes":       {[]set{{class, `"priority":"high"`, []string{"a"}}, {class, `"priority":"low"`, []string{"b"}}}, 0, []limit.Priority{low}},
		"of requests":          {[]set{{own, `"sharing":"Request"`, nil}, {own, `"priority":"low"`, []string{"a"}}, {own, `"priority":"high"`, []string{"b"}}}, high, []limit.Priority{low, high}},
		"normal, of a request": {[]set{{class, `"priority":"low"`, nil}, {own, `"sharing":"Request","computeMax":50`, nil}, {own, `"priority":"normal"`, []string{"b"}}}, normal, []limit.Priority{low, normal}},
	} {
		t.Run(name, func(t *testing.T) {
			c := allocated(result("a", 0, "10Gi", "0"), result("b/big", 1, "20Gi", "0"))
			for _, s := range tt.configs {
				config(c, s.source, head+","+s.parameters+"}", s.requests...)
			}
			p, err := Read(c, "n", gpus)
			expect.OK(t, err)
			expect.Must(t, len(p.Rations) == len(tt.want), p.Rations)
			for i, want := range tt.want {
				expect.Equal(t, p.Rations[i].Priority, want)
			}
			expect.Equal(t, p.Priority, tt.asked)
		})
	}
}

// A GPU has NVML's index in a job, and a MIG device the lowest number that is free: a machine has more of them than a job
// has numbers.
func TestReadNumbers(t *testing.T) {
	var many []slices.GPU
	for i := range 60 {
		prefix := "GPU-"
		if i >= 4 {
			prefix = "MIG-"
		}
		many = append(many, slices.GPU{Index: i, UUID: fmt.Sprintf("%s%08d-0000-0000-0000-000000000000", prefix, i), Memory: 80 * gib})
	}
	claimOf := func(devices ...int) *resourceapi.ResourceClaim {
		var results []resourceapi.DeviceRequestAllocationResult
		for _, d := range devices {
			r := result("a", 0, "1Gi", "0")
			r.Device = many[d].Name()
			results = append(results, r)
		}
		return allocated(results...)
	}
	numbers := func(devices ...int) (out []int) {
		p, err := Read(claimOf(devices...), "n", many)
		expect.OK(t, err)
		for _, s := range p.Rations[0].Shares {
			out = append(out, s.Index)
		}
		return out
	}
	expect.Equal(t, fmt.Sprint(numbers(3)), "[3]")
	expect.Equal(t, fmt.Sprint(numbers(59)), "[0]")
	expect.Equal(t, fmt.Sprint(numbers(59, 1, 5, 0, 59)), "[2 1 3 0]")
	expect.Equal(t, fmt.Sprint(numbers(20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 3)), "[0 1 2 4 5 6 7 8 9 10 11 12 13 14 15 3]")
	_, err := Read(claimOf(20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36), "n", many)
	expect.True(t, err != nil && strings.Contains(err.Error(), "has 17 devices in one ration, which can have 16"), err)
}

// Requests of a job wait for its memory as its claim says, or its class.
func TestReadWaitAlloc(t *testing.T) {
	c := allocated(result("a", 0, "10Gi", "0"))
	config(c, resourceapi.AllocationConfigSourceClass, head+`,"waitAlloc":"10s"}`)
	p, err := Read(c, "n", gpus)
	expect.OK(t, err)
	expect.Equal(t, p.Rations[0].WaitAlloc, limit.WaitAlloc(10_000))
	config(c, resourceapi.AllocationConfigSourceClaim, head+`,"waitAlloc":"1500ms"}`)
	p, err = Read(c, "n", gpus)
	expect.OK(t, err)
	expect.Equal(t, p.Rations[0].WaitAlloc, limit.WaitAlloc(1500))
}

// Whatever is odd is refused, with what to do.
func TestReadRefuses(t *testing.T) {
	one := func(change func(r *resourceapi.DeviceRequestAllocationResult)) *resourceapi.ResourceClaim {
		r := result("a", 0, "10Gi", "0")
		change(&r)
		return allocated(r)
	}
	consumed := func(name resourceapi.QualifiedName, value string) *resourceapi.ResourceClaim {
		return one(func(r *resourceapi.DeviceRequestAllocationResult) {
			r.ConsumedCapacity[name] = resource.MustParse(value)
		})
	}
	with := func(parameters string, requests ...string) *resourceapi.ResourceClaim {
		c := allocated(result("a", 0, "10Gi", "0"))
		config(c, resourceapi.AllocationConfigSourceClaim, parameters, requests...)
		return c
	}
	yes := true
	unallocated := allocated()
	unallocated.Status.Allocation = nil
	led := allocated(result("a", 0, "10Gi", "0"))
	led.UID = "../../etc/passwd"
	for name, tt := range map[string]struct {
		claim *resourceapi.ResourceClaim
		want  string
	}{
		"not allocated":    {unallocated, "is not allocated"},
		"no device":        {allocated(), "has no device of gpu.ration"},
		"another driver's": {one(func(r *resourceapi.DeviceRequestAllocationResult) { r.Driver = "gpu.nvidia.com" }), "has no device of gpu.ration"},
		"a UID that leads": {led, "is not one"},
		"another pool":     {one(func(r *resourceapi.DeviceRequestAllocationResult) { r.Pool = "m" }), "this is node n"},
		"unknown device":   {one(func(r *resourceapi.DeviceRequestAllocationResult) { r.Device = "gpu-2" }), "has no device gpu-2"},
		"admin access":     {one(func(r *resourceapi.DeviceRequestAllocationResult) { r.AdminAccess = &yes }), "admin access"},
		"gate off":         {one(func(r *resourceapi.DeviceRequestAllocationResult) { r.ConsumedCapacity = nil }), "DRAConsumableCapacity is off"},
		"no compute":       {one(func(r *resourceapi.DeviceRequestAllocationResult) { delete(r.ConsumedCapacity, slices.Compute) }), "does not say how much compute"},
		"unknown capacity": {consumed("bandwidth", "1"), "has bandwidth"},
		"nothing":          {consumed(slices.Memory, "0"), "memory of device gpu-00000000-0000-0000-0000-000000000000: 0 is not from"},
		"less than a MiB":  {consumed(slices.Memory, "1000000"), "is not from"},
		"negative":         {consumed(slices.Memory, "-10Gi"), "-10Gi is not from"},
		"a fraction":       {consumed(slices.Memory, "1500m"), "is not a whole number"},
		"more than it has": {consumed(slices.Memory, "81Gi"), "81Gi is not from"},
		"more than a word": {consumed(slices.Memory, "16E"), "is not"},
		"half a per cent":  {consumed(slices.Compute, "500m"), "is not a whole number"},
		"101 per cent":     {consumed(slices.Compute, "101"), "101 is not from 0 to 100"},
		"negative compute": {consumed(slices.Compute, "-1"), "-1 is not from 0 to 100"},
		"two for one":      {allocated(result("a", 0, "50Gi", "0"), result("b", 0, "50Gi", "0")), "which has"},
		"too much compute": {allocated(result("a", 0, "5Gi", "60"), result("b", 0, "5Gi", "60")), "120%"},
		"rubbish":          {with(`]`), "config: "},
		"unknown field":    {with(head + `,"memory":"1Gi"}`), "unknown field"},
		"another kind":     {with(`{"apiVersion":"gpu.ration/v2","kind":"RationConfig"}`), "is not gpu.ration/v1"},
		"a cap beyond 100": {with(head + `,"computeMax":101}`), "computeMax 101"},
		"unknown sharing":  {with(head + `,"sharing":"Pod"}`), `sharing "Pod"`},
		"sharing in part":  {with(head+`,"sharing":"Request"}`, "a"), "for the whole claim"},
		"unknown priority": {with(head + `,"priority":"urgent"}`), "not a priority"},
		"in capitals":      {with(head + `,"priority":"High"}`), "write high"},
		"priority in part": {with(head+`,"priority":"low"}`, "a"), "priority and waitAlloc are for the whole claim"},
		"wait in part":     {with(head+`,"waitAlloc":"30s"}`, "a"), "priority and waitAlloc are for the whole claim"},
		"a wait of a year": {with(head + `,"waitAlloc":"9000h"}`), "waitAlloc"},
		"sleeping":         {with(head + `,"sleepAfter":"10m"}`), "a claim cannot sleep: the scheduler keeps its memory reserved"},
		"waking":           {with(head + `,"wake":"manual"}`), "a claim cannot sleep"},
		"waiting":          {with(head + `,"wait":"10m"}`), "its pod is pending until the scheduler finds room"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := Read(tt.claim, "n", gpus)
			expect.True(t, err != nil && strings.Contains(err.Error(), tt.want), p, err, "want an error with", tt.want)
		})
	}
}
