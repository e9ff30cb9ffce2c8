package plugin

import (
	"context"
	"crypto/rand"
	"fmt"
	"math"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"

	"ration/kube/claim"
	"ration/kube/slices"
)

// The memory of a namespace is bounded over all nodes. Nothing in a claim says whether the plugin of
// another node has prepared it, and the order in which claims were made is not the order in which
// they are used. So each namespace has a ConfigMap with the UIDs of its admitted claims, in the
// plugin's own namespace, where tenants cannot write.
//
// Invariant: the admitted claims that are allocated have at most the bound together.
//
// To admit a claim, a plugin reads the ConfigMap, then lists the namespace's claims, adds up, and
// writes the ConfigMap with the claim and without those that are not allocated any more. The API
// server refuses the write if the ConfigMap has changed since it was read, and the plugin begins
// again. Each write differs from all others, so that two that read the same never both succeed. An
// admitted claim was allocated before, so the list of each later write has it while it stays so.
//
// A crash after the write leaves a claim that counts as long as it is allocated. A claim that is
// refused is in no ConfigMap, and keeps no other from being admitted. The model is models/admit.pml.

// admitWithin bounds how long a claim waits for the API server; the kubelet waits for 45 s.
const admitWithin = 15 * time.Second

// admitRetry is for conflicts with plugins of other nodes.
var admitRetry = wait.Backoff{Steps: 10, Duration: 10 * time.Millisecond, Factor: 2, Jitter: 1}

// Keys of the ConfigMap.
const (
	quotaClaims = "claims" // UIDs of admitted claims, with spaces
	quotaWrite  = "write"  // differs in each write
)

// quotaName returns the name of the ConfigMap for a namespace.
func quotaName(namespace string) string { return "ration-quota-" + namespace }

// admit admits a claim, if the admitted claims of its namespace have at most so many bytes with it.
func (p *Plugin) admit(plan claim.Plan, most uint64) error {
	p.admits.Lock() // claims of this node wait here instead of failing with a conflict
	defer p.admits.Unlock()
	ctx, cancel := context.WithTimeout(p.running, admitWithin)
	defer cancel()
	again := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	return retry.OnError(admitRetry, again, func() error { return p.tryAdmit(ctx, plan, most) })
}

func (p *Plugin) tryAdmit(ctx context.Context, plan claim.Plan, most uint64) error {
	maps, name := p.Client.CoreV1().ConfigMaps(p.Namespace), quotaName(plan.Namespace)
	quota, err := maps.Get(ctx, name, metav1.GetOptions{})
	found := err == nil
	if apierrors.IsNotFound(err) {
		quota, err = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app.kubernetes.io/name": "ration"}}}, nil
	}
	if err != nil {
		return fmt.Errorf("asking for the admitted claims of namespace %s: %w", plan.Namespace, err)
	}
	claims, err := p.Client.ResourceV1().ResourceClaims(plan.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("adding up the claims of namespace %s: %w", plan.Namespace, err)
	}
	admitted := map[string]bool{}
	for uid := range strings.FieldsSeq(quota.Data[quotaClaims]) {
		admitted[uid] = true
	}
	uids, sum := []string{plan.UID}, plan.Memory()
	for _, c := range claims.Items {
		if uid := string(c.UID); uid != plan.UID && admitted[uid] && c.Status.Allocation != nil {
			uids, sum = append(uids, uid), sum+allocatedMemory(&c)
		}
	}
	if sum > most {
		return fmt.Errorf("namespace %s would have %d bytes of memory with claim %s, in %d claims, and may have %d (end a pod of the namespace, ask for less, or raise policies.maxNamespaceMemory of the chart)",
			plan.Namespace, sum, plan.Name, len(uids), most)
	}
	quota.Data = map[string]string{quotaClaims: strings.Join(uids, " "), quotaWrite: rand.Text()}
	if found {
		_, err = maps.Update(ctx, quota, metav1.UpdateOptions{})
	} else {
		_, err = maps.Create(ctx, quota, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("admitting claim %s/%s: %w", plan.Namespace, plan.Name, err)
	}
	return nil
}

// allocatedMemory returns how many bytes of this driver's devices a claim has.
func allocatedMemory(c *resourceapi.ResourceClaim) (sum uint64) {
	for _, r := range c.Status.Allocation.Devices.Results {
		if q := r.ConsumedCapacity[slices.Memory]; r.Driver == slices.Driver && q.Sign() > 0 {
			sum += uint64(q.Value())
		}
	}
	return sum
}

// admitPrepared admits the claims that are prepared on this node, whatever they have: they were
// prepared before there was a bound.
func (p *Plugin) admitPrepared(ctx context.Context) {
	for {
		err := p.tryAdmitPrepared(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		klog.FromContext(ctx).Error(err, "Counting the memory of namespaces")
		if !pause(ctx, sweepRetry) {
			return
		}
	}
}

func (p *Plugin) tryAdmitPrepared(ctx context.Context) error {
	records, err := p.Node.Records()
	if err != nil {
		return err
	}
	for _, r := range records {
		gone, err := p.gone(ctx, r.Plan)
		if err == nil && !gone {
			err = p.admit(r.Plan, math.MaxUint64)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
