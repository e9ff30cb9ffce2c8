package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"ration/kube/claim"
	"ration/kube/node"
	"ration/kube/slices"
)

// ResizePrefix and a claim's UID are the annotation of a Node that changes the memory of the claim on each of its
// devices, as 20Gi. It is on the Node, because users who may edit claims of their namespace must not give themselves
// more; Nodes are the administrators'.
const ResizePrefix = "resize." + slices.Driver + "/"

// Reasons of the events about a changed size.
const (
	ReasonResized       = "GPUMemoryResized"
	ReasonResizeRefused = "GPUMemoryResizeRefused"
)

// resizeRetry is when a change is tried again that was not possible.
const resizeRetry = 10 * time.Second

// watchNode follows the annotations of the plugin's Node, until the context ends.
func (p *Plugin) watchNode(ctx context.Context) {
	factory := informers.NewSharedInformerFactoryWithOptions(p.Client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, p.NodeName).String()
	}))
	read := func(object any) {
		if n, ok := object.(*corev1.Node); ok && n.Name == p.NodeName {
			sizes := sizesOf(n.Annotations)
			if before := p.sizes.Swap(&sizes); before == nil || !maps.Equal(*before, sizes) {
				p.resizeSoon()
			}
		}
	}
	_, err := factory.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: read, UpdateFunc: func(_, now any) { read(now) }})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Claims cannot be resized")
		return
	}
	factory.Start(ctx.Done())
	<-ctx.Done()
	factory.Shutdown()
}

// sizesOf returns the annotations that resize claims, by the claims' UIDs.
func sizesOf(annotations map[string]string) map[string]string {
	out := map[string]string{}
	for key, value := range annotations {
		if uid, ok := strings.CutPrefix(key, ResizePrefix); ok {
			out[uid] = value
		}
	}
	return out
}

// resizeSoon requests that the sizes of all claims are compared with the annotations.
func (p *Plugin) resizeSoon() {
	select {
	case p.resize <- struct{}{}:
	default: // it is already requested
	}
}

// resizeWhenAsked resizes claims when the annotations have changed and when a claim with one was prepared. What was not possible
// is tried again.
func (p *Plugin) resizeWhenAsked(ctx context.Context) {
	lastEvents := map[string]string{}
	for {
		var again <-chan time.Time
		if sizes := p.sizes.Load(); sizes != nil && p.resizeAll(ctx, *sizes, lastEvents) {
			again = time.After(resizeRetry)
		}
		select {
		case <-ctx.Done():
			return
		case <-p.resize:
		case <-again:
		}
	}
}

// resizeAll resizes all claims once. lastEvents has the last event of each claim. It reports whether something was not
// possible.
func (p *Plugin) resizeAll(ctx context.Context, sizes, lastEvents map[string]string) (again bool) {
	records, err := p.Node.Records()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Looking for claims to resize")
		again = true
	}
	there := map[string]bool{}
	for _, r := range records {
		there[r.Plan.UID] = true
		if r.Created == nil {
			continue // it is being prepared, and this is called again then
		}
		again = p.resizeOne(ctx, r.Plan, sizes[r.Plan.UID], lastEvents) || again
	}
	for uid := range lastEvents {
		if !there[uid] {
			delete(lastEvents, uid)
		}
	}
	return again
}

func (p *Plugin) resizeOne(ctx context.Context, c claim.Plan, size string, lastEvents map[string]string) (again bool) {
	changed, err := false, error(nil)
	bytes, err := parseSize(size)
	if err == nil {
		changed, err = p.Node.Resize(c.UID, bytes)
		if errors.Is(err, node.ErrNotPrepared) {
			return false
		}
	}
	if changed {
		p.gpus.again() // what claims have beyond their allocations is not published
	}
	reason, text := "", ""
	switch {
	case err != nil && !errors.Is(err, node.ErrHolds):
		reason, text = ReasonResizeRefused, fmt.Sprintf("The annotation %s%s of node %s: %v", ResizePrefix, c.UID, p.NodeName, err)
	case size != "":
		reason, text = ReasonResized, fmt.Sprintf("Claim %s has %s of each of its GPUs now", c.Name, size)
	case changed:
		reason, text = ReasonResized, fmt.Sprintf("Claim %s has what it asked for again", c.Name)
	}
	if text == "" || lastEvents[c.UID] == text || p.EventsPeriod == 0 { // without events it has no right to create them
		return err != nil
	}
	if e := p.tell(ctx, c.Namespace, c.Pods, reason, text, time.Now()); e != nil {
		klog.FromContext(ctx).Error(e, "Telling of a resize", "claim", klog.KRef(c.Namespace, c.Name))
		return true
	}
	lastEvents[c.UID] = text
	klog.FromContext(ctx).Info("Resized", "claim", klog.KRef(c.Namespace, c.Name), "event", text)
	return err != nil
}

// parseSize parses the value of an annotation; an empty one is 0.
func parseSize(text string) (uint64, error) {
	if text == "" {
		return 0, nil
	}
	q, err := resource.ParseQuantity(text)
	if n, ok := q.AsInt64(); err == nil && ok && n > 0 {
		return uint64(n), nil
	}
	return 0, fmt.Errorf("%q is not a size (use 20Gi)", text)
}

// hasExtra reports whether a claim has more than its allocation.
func (p *Plugin) hasExtra(uid string) bool {
	r, err := p.Node.Record(uid)
	return err == nil && len(r.Extra) > 0
}
