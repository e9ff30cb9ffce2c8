// Package claim reads the allocation of a ResourceClaim, and divides it into jobs. It does no I/O.
//
// The scheduler has checked most of the allocation already. This package checks all of it again,
// because only the node enforces limits. For example, if the feature DRAConsumableCapacity is off,
// the API server silently drops the fields that say how much was allocated, and the first pod would
// get the whole device.
package claim

import (
	"fmt"
	"regexp"
	stdslices "slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"ration/internal/limit"
	"ration/kube/slices"
)

// Plan is the content of a claim on this node.
type Plan struct {
	UID       string   `json:"uid"`
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Pods      []Pod    `json:"pods"` // pods that it is reserved for
	Rations   []Ration `json:"rations"`
	Results   []Result `json:"results"`

	Priority limit.Priority `json:"priority,omitzero"` // the highest that the claim itself asks for, not its class
}

// Pod is a pod that a claim is reserved for.
type Pod struct {
	Name       string   `json:"name"`
	UID        string   `json:"uid"`
	Containers []string `json:"containers,omitempty"` // those that use the claim, as far as they are known
}

// Ration is a part of a claim that becomes one job. All containers that get it share it.
type Ration struct {
	Request string  `json:"request,omitempty"` // request that it belongs to; empty for all requests
	Shares  []Share `json:"shares"`

	Priority  limit.Priority  `json:"priority,omitzero"`   // of the job; the lowest of its requests
	WaitAlloc limit.WaitAlloc `json:"wait_alloc,omitzero"` // of the job; that of its first request
}

// Share is a part of a device.
type Share struct {
	Index      int    `json:"index"` // its number in the job (number)
	UUID       string `json:"uuid"`
	Device     string `json:"device"` // its name in the pool
	Memory     uint64 `json:"memory"` // bytes
	Compute    int    `json:"compute,omitempty"`
	ComputeMax int    `json:"compute_max,omitempty"`
}

// Result is one allocated device, as reported to the kubelet.
type Result struct {
	Request string `json:"request"`
	Pool    string `json:"pool"`
	Device  string `json:"device"`
	ShareID string `json:"share_id,omitempty"`
	Ration  int    `json:"ration"` // index of its Ration
}

var validUID = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z-]{0,48}[0-9A-Za-z]$`)

// CheckUID returns an error unless the UID is safe as part of a file name.
func CheckUID(uid string) error {
	if !validUID.MatchString(uid) {
		return fmt.Errorf("claim UID %.64q is not one", uid)
	}
	return nil
}

// Read returns the content of a claim, or an error that says why it must not be prepared. The error
// text becomes an event of the pod.
func Read(c *resourceapi.ResourceClaim, node string, gpus []slices.GPU) (Plan, error) {
	p := Plan{UID: string(c.UID), Namespace: c.Namespace, Name: c.Name}
	if err := CheckUID(p.UID); err != nil {
		return p, err
	}
	if c.Status.Allocation == nil {
		return p, fmt.Errorf("claim %s/%s is not allocated (the scheduler does that; create the pod without nodeName)", c.Namespace, c.Name)
	}
	for _, r := range c.Status.ReservedFor {
		if r.APIGroup == "" && r.Resource == "pods" {
			p.Pods = append(p.Pods, Pod{Name: r.Name, UID: string(r.UID)})
		}
	}
	devices := c.Status.Allocation.Devices
	settings, err := readSettings(devices.Config)
	if err != nil {
		return p, fmt.Errorf("claim %s/%s: %w", c.Namespace, c.Name, err)
	}
	p.Priority = settings.asked
	for _, r := range devices.Results {
		if r.Driver != slices.Driver {
			continue // another driver's plugin prepares it
		}
		share, err := readShare(r, node, gpus)
		if err != nil {
			return p, fmt.Errorf("claim %s/%s, request %s: %w", c.Namespace, c.Name, r.Request, err)
		}
		share.ComputeMax = valueFor(settings.caps, r.Request)
		result := Result{Request: r.Request, Pool: r.Pool, Device: r.Device, Ration: p.ration(settings, r.Request)}
		if r.ShareID != nil {
			result.ShareID = string(*r.ShareID)
		}
		p.Results = append(p.Results, result)
		ration := &p.Rations[result.Ration]
		if len(ration.Shares) == 0 {
			ration.WaitAlloc = valueFor(settings.waits, r.Request)
		}
		if priority := valueFor(settings.priorities, r.Request); len(ration.Shares) == 0 || ration.Priority.Above(priority) {
			ration.Priority = priority
		}
		ration.add(share)
	}
	if len(p.Results) == 0 {
		return p, fmt.Errorf("claim %s/%s has no device of %s (its device class has to select driver %s)", c.Namespace, c.Name, slices.Driver, slices.Driver)
	}
	for i := range p.Rations {
		if err := p.Rations[i].number(); err != nil {
			return p, fmt.Errorf("claim %s/%s %w", c.Namespace, c.Name, err)
		}
	}
	return p, p.check(gpus)
}

// number gives each share its number in the job: a GPU has NVML's index, as everywhere on the machine. A job has fewer
// numbers than a machine may have MIG devices, so these have the lowest that are free. In a container NVML counts only the
// GPUs that they are parts of, which so have no number that is free and would have the limit of a device outside the claim.
func (r *Ration) number() error {
	if len(r.Shares) > limit.MaxDevices {
		return fmt.Errorf("has %d devices in one ration, which can have %d (ask for fewer, or for a ration of each request with sharing: %s)", len(r.Shares), limit.MaxDevices, ShareByRequest)
	}
	keeps := func(s Share) bool { return s.Index < limit.MaxDevices && !strings.HasPrefix(s.UUID, "MIG-") }
	var taken [limit.MaxDevices]bool
	for _, s := range r.Shares {
		if keeps(s) {
			taken[s.Index] = true
		}
	}
	for i := range r.Shares {
		if s := &r.Shares[i]; !keeps(*s) {
			s.Index = stdslices.Index(taken[:], false)
			taken[s.Index] = true
		}
	}
	return nil
}

// ration returns the index of the ration that a request belongs to.
func (p *Plan) ration(s settings, request string) int {
	name := ""
	if s.perRequest {
		name, _, _ = strings.Cut(request, "/") // a subrequest is one way to satisfy the request
	}
	for i, r := range p.Rations {
		if r.Request == name {
			return i
		}
	}
	p.Rations = append(p.Rations, Ration{Request: name})
	return len(p.Rations) - 1
}

// add adds a share. It joins two shares of one device into one of their sum.
func (r *Ration) add(s Share) {
	for i := range r.Shares {
		if own := &r.Shares[i]; own.Device == s.Device {
			own.Memory += s.Memory
			own.Compute += s.Compute
			own.ComputeMax = mergeCaps(own.ComputeMax, s.ComputeMax)
			return
		}
	}
	r.Shares = append(r.Shares, s)
}

// mergeCaps adds two caps on a device's time; 0 means no cap.
func mergeCaps(a, b int) int {
	if a == 0 || b == 0 {
		return 0
	}
	return min(100, a+b)
}

// check returns an error if the shares of a device exceed it.
func (p *Plan) check(gpus []slices.GPU) error {
	for _, g := range gpus {
		memory, compute := p.Of(g.Name())
		if memory > g.Capacity() || compute > 100 {
			return fmt.Errorf("claim %s/%s has %d bytes and %d%% of device %s, which has %d and 100%% (delete the claim, and look for a fault in the scheduler)",
				p.Namespace, p.Name, memory, compute, g.Name(), g.Capacity())
		}
	}
	return nil
}

// Of returns how much of a device a claim has.
func (p *Plan) Of(device string) (memory uint64, compute int) {
	for _, r := range p.Rations {
		for _, s := range r.Shares {
			if s.Device == device {
				memory, compute = memory+s.Memory, compute+s.Compute
			}
		}
	}
	return memory, compute
}

// Memory returns how much memory a claim has, of all devices together.
func (p *Plan) Memory() (memory uint64) {
	for _, r := range p.Rations {
		for _, s := range r.Shares {
			memory += s.Memory
		}
	}
	return memory
}

// Compute returns how much compute a claim has, in per cent of a device, of all devices together.
func (p *Plan) Compute() (compute int) {
	for _, r := range p.Rations {
		for _, s := range r.Shares {
			compute += s.Compute
		}
	}
	return compute
}

func readShare(r resourceapi.DeviceRequestAllocationResult, node string, gpus []slices.GPU) (Share, error) {
	if r.AdminAccess != nil && *r.AdminAccess {
		return Share{}, fmt.Errorf("device %s has admin access, of which no ration can be made (ask for memory instead)", r.Device)
	}
	if r.Pool != node {
		return Share{}, fmt.Errorf("device %s is of pool %s, and this is node %s (delete the pod, so that it is scheduled anew)", r.Device, r.Pool, node)
	}
	for _, g := range gpus {
		if g.Name() == r.Device {
			return shareOf(g, r.ConsumedCapacity)
		}
	}
	return Share{}, fmt.Errorf("node %s has no device %s (was the GPU removed, or divided by MIG? delete the pod, so that it is scheduled anew)", node, r.Device)
}

func shareOf(g slices.GPU, consumed map[resourceapi.QualifiedName]resource.Quantity) (s Share, err error) {
	for _, name := range []resourceapi.QualifiedName{slices.Memory, slices.Compute} {
		if _, ok := consumed[name]; !ok {
			return s, fmt.Errorf("the allocation does not say how much %s it has of device %s: "+
				"the feature gate DRAConsumableCapacity is off in the API server, the scheduler or the controller manager (turn it on in all three, and delete the pod)", name, g.Name())
		}
	}
	for name := range consumed {
		if name != slices.Memory && name != slices.Compute {
			return s, fmt.Errorf("the allocation has %s of device %s, which is not known here (was the plugin on this node downgraded?)", name, g.Name())
		}
	}
	memory, err := whole(consumed[slices.Memory], 1<<20, g.Capacity())
	if err != nil {
		return s, fmt.Errorf("memory of device %s: %w", g.Name(), err)
	}
	compute, err := whole(consumed[slices.Compute], 0, 100)
	if err != nil {
		return s, fmt.Errorf("compute of device %s: %w", g.Name(), err)
	}
	return Share{Index: g.Index, UUID: g.UUID, Device: g.Name(), Memory: memory, Compute: int(compute)}, nil
}

// whole returns a quantity as a whole number within bounds.
func whole(q resource.Quantity, least, most uint64) (uint64, error) {
	n, ok := q.AsInt64()
	if !ok { // a fraction, or beyond 64 bits
		return 0, fmt.Errorf("%s is not a whole number (delete the claim, and ask for a whole number)", q.String())
	}
	if n < 0 || uint64(n) < least || uint64(n) > most {
		return 0, fmt.Errorf("%s is not from %d to %d (delete the claim, and ask for another amount)", q.String(), least, most)
	}
	return uint64(n), nil
}
