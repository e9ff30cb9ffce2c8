package plugin

import (
	"context"
	"maps"
	"reflect"
	stdslices "slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2"

	"ration/kube/node"
	"ration/kube/slices"
)

// checkPeriod is how often the GPUs are checked.
const checkPeriod = 10 * time.Second

// faultHold is how long a GPU counts as sick at least after the driver reported a fault, although NVML
// finds nothing wrong.
const faultHold = 5 * time.Minute

// outsideUse is what processes without the library have of a GPU.
type outsideUse struct {
	processes int
	bytes     uint64
}

// gpuStates has what is known of the GPUs, by UUID. It is safe for concurrent use.
type gpuStates struct {
	lock     sync.Mutex
	sick     map[string]string       // why, for those that do not work: found, and those with a fault
	found    map[string]string       // by the last check
	noReset  map[string]bool         // those for which the driver said in the last check that they need no reset
	faults   map[string]slices.Fault // that are not over, by the PCI bus ID of the GPU
	checked  time.Time               // when the last check was
	outside  map[string]outsideUse   // of those whose processes are known
	withheld bool                    // the API server has no taints: leave GPUs with a taint out of the slices
	changed  chan struct{}           // is closed at the next change; nil until someone waits for it
}

// get returns which GPUs do not work and why, what processes without the library have of them, and
// a channel that is closed when this changes. The maps must not be changed.
func (s *gpuStates) get() (sick map[string]string, outside map[string]outsideUse, changed <-chan struct{}) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.sick, s.outside, s.changed
}

// change wakes those that wait for a change. The lock must be held.
func (s *gpuStates) change() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// again wakes those that wait for a change, for what claims have of the GPUs.
func (s *gpuStates) again() {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.change()
}

// setSick records the result of a check of these GPUs.
func (s *gpuStates) setSick(gpus []slices.GPU, found map[string]string, noReset map[string]bool, now time.Time) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.checked, s.found, s.noReset = now, found, noReset
	s.update(gpus, now)
}

// addFault records a fault that the driver has reported of one of these GPUs, or of one that is found
// later.
func (s *gpuStates) addFault(gpus []slices.GPU, f slices.Fault, now time.Time) {
	s.lock.Lock()
	defer s.lock.Unlock()
	before := s.faults[f.PCI]
	if before.Reset {
		f.Why, f.Reset = before.Why, true
	}
	if before.At.After(f.At) { // the log is read again
		f.At = before.At
	}
	if s.faults == nil {
		s.faults = map[string]slices.Fault{}
	}
	s.faults[f.PCI] = f
	s.update(gpus, now)
}

// update removes the faults that are over, and finds which GPUs are sick. A fault is over after
// faultHold; if it needs a reset, not before the driver says that the GPU needs none any more. The
// lock must be held.
func (s *gpuStates) update(gpus []slices.GPU, now time.Time) {
	sick := map[string]string{}
	for pci, f := range s.faults {
		of := func(g slices.GPU) bool { return g.Location.PCI == pci }
		if !now.Before(f.At.Add(faultHold)) && (!f.Reset || stdslices.ContainsFunc(gpus, func(g slices.GPU) bool { return of(g) && s.noReset[g.UUID] })) {
			delete(s.faults, pci)
			continue
		}
		for _, g := range gpus {
			if of(g) {
				sick[g.UUID] = f.Why
			}
		}
	}
	maps.Copy(sick, s.found)
	if !maps.Equal(sick, s.sick) {
		s.sick = sick
		s.change()
	}
}

func (s *gpuStates) setOutside(outside map[string]outsideUse) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if !maps.Equal(outside, s.outside) {
		s.outside = outside
		s.change()
	}
}

func (s *gpuStates) withhold() {
	s.lock.Lock()
	defer s.lock.Unlock()
	if !s.withheld {
		s.withheld = true
		s.change()
	}
}

func (s *gpuStates) checkedAt() time.Time {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.checked
}

func (s *gpuStates) isWithheld() bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.withheld
}

// uuids returns the UUIDs of the node's GPUs.
func (p *Plugin) uuids() (out []string) {
	for _, g := range p.Node.Devices() {
		out = append(out, g.UUID)
	}
	return out
}

// checkGPUs checks once which GPUs do not work.
func (p *Plugin) checkGPUs(ctx context.Context, now time.Time) {
	p.findGPUs(ctx)
	before, _, _ := p.gpus.get()
	var sick map[string]string
	var noReset map[string]bool
	if p.Sick != nil {
		sick, noReset = p.Sick(p.uuids())
	}
	p.gpus.setSick(p.Node.Devices(), sick, noReset, now)
	after, _, _ := p.gpus.get()
	for uuid, why := range after {
		if _, ok := before[uuid]; !ok {
			klog.FromContext(ctx).Info("A GPU does not work", "uuid", uuid, "why", why)
		}
	}
	for uuid := range before {
		if _, ok := after[uuid]; !ok {
			klog.FromContext(ctx).Info("A GPU works again", "uuid", uuid)
		}
	}
}

// findGPUs looks for GPUs that were added to the machine or removed from it. A GPU that is gone stays, and is reported as
// sick, while a claim has a part of it: its pods have to be told.
func (p *Plugin) findGPUs(ctx context.Context) {
	if p.Find == nil {
		return
	}
	found, driver, err := p.Find()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Looking for new GPUs")
		return
	}
	records, err := p.Node.Records()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Looking for the GPUs of claims")
		return
	}
	before := p.Node.Devices()
	is := func(uuid string) func(slices.GPU) bool { return func(g slices.GPU) bool { return g.UUID == uuid } }
	for _, g := range before {
		if stdslices.ContainsFunc(found, is(g.UUID)) {
			continue
		}
		if stdslices.ContainsFunc(records, func(r *node.Record) bool { m, _ := r.Plan.Of(g.Name()); return m > 0 }) {
			found = append(found, g)
		}
	}
	if reflect.DeepEqual(before, found) {
		return
	}
	for _, g := range found {
		if !stdslices.ContainsFunc(before, is(g.UUID)) {
			klog.FromContext(ctx).Info("A GPU was added", "uuid", g.UUID, "index", g.Index)
		}
	}
	for _, g := range before {
		if !stdslices.ContainsFunc(found, is(g.UUID)) {
			klog.FromContext(ctx).Info("A GPU was removed", "uuid", g.UUID)
		}
	}
	p.Node.SetDevices(found, driver)
	p.gpus.again()
}

// watchGPUs checks the GPUs every checkPeriod.
func (p *Plugin) watchGPUs(ctx context.Context) {
	for pause(ctx, checkPeriod) {
		p.checkGPUs(ctx, time.Now())
	}
}

// faultsRetry is the pause before the driver's faults are followed again. Tests shorten it.
var faultsRetry = 30 * time.Second

// followFaults records the faults that the driver reports. It calls caughtUp when those from before are recorded, or
// cannot be.
func (p *Plugin) followFaults(ctx context.Context, caughtUp func()) {
	for {
		err := p.Faults(ctx, func(f slices.Fault) {
			now := time.Now()
			if !f.Reset && !now.Before(f.At.Add(faultHold)) {
				return
			}
			klog.FromContext(ctx).Info("The driver reported a fault", "pci", f.PCI, "why", f.Why, "at", f.At)
			p.gpus.addFault(p.Node.Devices(), f, now)
		}, caughtUp)
		caughtUp()
		if ctx.Err() != nil {
			return
		}
		klog.FromContext(ctx).Error(err, "Following the driver's faults: until the next attempt only the checks find them")
		if !pause(ctx, faultsRetry) {
			return
		}
	}
}

// publishable returns the GPUs to publish, with their taints, and without the memory that claims have beyond their
// allocations.
func (p *Plugin) publishable() (out []slices.GPU, err error) {
	extra, err := p.Node.Extra()
	if err != nil {
		return nil, err
	}
	sick, outside, _ := p.gpus.get()
	withheld := p.gpus.isWithheld()
	for _, g := range p.Node.Devices() {
		add := func(is bool, key string, effect resourceapi.DeviceTaintEffect) {
			if is && effect != "" {
				g.Taints = append(g.Taints, resourceapi.DeviceTaint{Key: key, Effect: effect})
			}
		}
		_, isSick := sick[g.UUID]
		add(isSick, slices.TaintUnhealthy, p.TaintUnhealthy)
		add(outside[g.UUID].processes > 0, slices.TaintOutside, p.TaintOutside)
		g.Memory -= min(g.Memory, extra[g.Name()])
		if len(g.Taints) == 0 || !withheld {
			out = append(out, g)
		}
	}
	return out, nil
}
