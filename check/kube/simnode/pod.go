package simnode

import (
	"context"
	"fmt"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	ours "ration/kube/slices"
)

// node has the accounts of one node.
type node struct {
	name     string
	capacity map[string]amounts               // by device
	used     map[string]amounts               // by device
	prepared map[types.UID]*preparedClaim     // by claim
	claims   map[types.UID]map[types.UID]bool // claims by pod
}

// amounts are amounts of a device's capacities.
type amounts map[resourceapi.QualifiedName]int64

type preparedClaim struct {
	parts []part
	pods  map[types.UID]bool
}

// part is a claim's part of a device.
type part struct {
	device string
	has    amounts
}

func newNode(name string, gpus []ours.GPU) *node {
	n := &node{name: name, capacity: map[string]amounts{}, used: map[string]amounts{}, prepared: map[types.UID]*preparedClaim{}, claims: map[types.UID]map[types.UID]bool{}}
	for _, g := range gpus {
		n.capacity[g.Name()] = amounts{ours.Memory: int64(g.Capacity()), ours.Compute: 100}
		n.used[g.Name()] = amounts{}
	}
	return n
}

// sync does what a kubelet does after a change of a pod.
func (k *Kubelets) sync(ctx context.Context, key string) error {
	o, exists, err := k.pods.GetByKey(key)
	if err != nil || !exists {
		return err
	}
	pod := o.(*corev1.Pod)
	k.mu.Lock()
	n := k.nodes[pod.Spec.NodeName]
	k.mu.Unlock()
	switch {
	case n == nil:
		return nil
	case pod.DeletionTimestamp != nil:
		k.release(pod)
		err := k.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil
		}
		return err
	case pod.Status.Phase != corev1.PodPending:
		return nil
	}
	if err := k.prepare(ctx, n, pod); err != nil {
		return err
	}
	pod = pod.DeepCopy()
	now := metav1.Now()
	pod.Status.Phase, pod.Status.StartTime = corev1.PodRunning, &now
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now})
	_, err = k.client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// prepare adds the claims of a pod to the accounts of its node.
func (k *Kubelets) prepare(ctx context.Context, n *node, pod *corev1.Pod) error {
	for _, wanted := range pod.Spec.ResourceClaims {
		name := claimName(pod, wanted)
		if name == "" {
			return fmt.Errorf("pod %s/%s: no claim was made for %s yet", pod.Namespace, pod.Name, wanted.Name)
		}
		claim, err := k.client.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if claim.Status.Allocation == nil || !slices.ContainsFunc(claim.Status.ReservedFor, func(r resourceapi.ResourceClaimConsumerReference) bool { return r.UID == pod.UID }) {
			if current, err := k.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{}); err != nil || current.UID != pod.UID || current.DeletionTimestamp != nil {
				return err // the pod was removed, and its claim with it
			}
			k.fault("pod %s/%s was bound to %s, but its claim %s is not allocated and reserved for it", pod.Namespace, pod.Name, n.name, name)
			continue
		}
		k.enter(n, pod, claim)
	}
	return nil
}

func claimName(pod *corev1.Pod, wanted corev1.PodResourceClaim) string {
	if wanted.ResourceClaimName != nil {
		return *wanted.ResourceClaimName
	}
	for _, made := range pod.Status.ResourceClaimStatuses {
		if made.Name == wanted.Name && made.ResourceClaimName != nil {
			return *made.ResourceClaimName
		}
	}
	return ""
}

// enter books a claim, unless another pod has booked it.
func (k *Kubelets) enter(n *node, pod *corev1.Pod, claim *resourceapi.ResourceClaim) {
	var parts []part
	for _, r := range claim.Status.Allocation.Devices.Results {
		p := part{r.Device, amounts{}}
		for name, quantity := range r.ConsumedCapacity {
			p.has[name] = quantity.Value()
		}
		parts = append(parts, p)
		if r.Pool != n.name {
			k.fault("claim %s/%s has a device of pool %s, and its pod is on %s", claim.Namespace, claim.Name, r.Pool, n.name)
		}
		if p.has[ours.Memory] == 0 {
			k.fault("claim %s/%s has no memory in %v", claim.Namespace, claim.Name, r.ConsumedCapacity)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	// A pod that was removed before this was released already. One that is removed later is
	// released after this.
	if o, exists, _ := k.pods.GetByKey(pod.Namespace + "/" + pod.Name); !exists || o.(*corev1.Pod).UID != pod.UID {
		return
	}
	entered := n.prepared[claim.UID]
	if entered == nil {
		entered = &preparedClaim{parts: parts, pods: map[types.UID]bool{}}
		n.prepared[claim.UID] = entered
		for _, p := range parts {
			k.faults = append(k.faults, n.book(p, 1)...)
		}
	}
	entered.pods[pod.UID] = true
	if n.claims[pod.UID] == nil {
		n.claims[pod.UID] = map[types.UID]bool{}
	}
	n.claims[pod.UID][claim.UID] = true
}

// book adds a claim's parts to the used amounts, or subtracts them if sign is -1. It returns the
// amounts that exceed a device.
func (n *node) book(p part, sign int64) (faults []error) {
	for name, amount := range p.has {
		used, known := n.used[p.device]
		if !known {
			return []error{fmt.Errorf("node %s has no device %s", n.name, p.device)}
		}
		used[name] += sign * amount
		if there := n.capacity[p.device][name]; used[name] > there {
			faults = append(faults, fmt.Errorf("node %s, device %s: claims have %d of %d of %s", n.name, p.device, used[name], there, name))
		}
	}
	return faults
}

// release removes a pod's claims that no other pod uses from the accounts of its node.
func (k *Kubelets) release(pod *corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := k.nodes[pod.Spec.NodeName]
	if n == nil {
		return
	}
	for uid := range n.claims[pod.UID] {
		claim := n.prepared[uid]
		if delete(claim.pods, pod.UID); len(claim.pods) == 0 {
			delete(n.prepared, uid)
			for _, p := range claim.parts {
				n.book(p, -1)
			}
		}
	}
	delete(n.claims, pod.UID)
}

// Placed returns how many pods have a node.
func (k *Kubelets) Placed() int { return len(k.pods.ListKeys()) }

// beat renews the lease of a node, which shows that it is alive.
func (k *Kubelets) beat(ctx context.Context, name string) error {
	leases := k.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	lease, err := leases.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &name, RenewTime: nowMicro()}}, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	lease.Spec.RenewTime = nowMicro()
	_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	return err
}

func nowMicro() *metav1.MicroTime {
	now := metav1.NowMicro()
	return &now
}
