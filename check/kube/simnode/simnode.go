// Package simnode stands in for the kubelets of many nodes: it registers them, lets the pods that are bound
// to them run, and lets those that are deleted go. It starts no program.
//
// Each node keeps books of what the claims of its pods have of each of its devices, from what it reads when
// it starts a pod, as a kubelet does, and reports every moment at which that is more than there is. The
// scheduler's own books are not asked.
package simnode

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"ration/kube/slices"
)

// Kubelets are the kubelets of the nodes that were added.
type Kubelets struct {
	client kubernetes.Interface
	queue  workqueue.TypedRateLimitingInterface[string] // pods, by namespace/name
	pods   cache.Indexer
	done   sync.WaitGroup

	mu     sync.Mutex
	nodes  map[string]*node
	faults []error
}

// Start starts to handle pods, with the given number of workers. They end with the context; Wait
// waits for that.
func Start(ctx context.Context, client kubernetes.Interface, workers int) (*Kubelets, error) {
	k := &Kubelets{client: client, nodes: map[string]*node{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermNotEqualSelector("spec.nodeName", "").String()
	}))
	informer := factory.Core().V1().Pods().Informer()
	k.pods = informer.GetIndexer()
	add := func(pod *corev1.Pod) { k.queue.Add(pod.Namespace + "/" + pod.Name) }
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { add(o.(*corev1.Pod)) },
		UpdateFunc: func(_, o any) { add(o.(*corev1.Pod)) },
		// A pod that was deleted by force releases its claims before any later pod is handled.
		DeleteFunc: func(o any) {
			if gone, missed := o.(cache.DeletedFinalStateUnknown); missed {
				o = gone.Obj
			}
			k.release(o.(*corev1.Pod))
		},
	})
	if err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil, fmt.Errorf("watching pods: %w", context.Cause(ctx))
	}
	for range workers {
		k.done.Go(func() { k.work(ctx) })
	}
	go func() { <-ctx.Done(); k.queue.ShutDown(); factory.Shutdown() }()
	return k, nil
}

// Wait waits until the workers have ended.
func (k *Kubelets) Wait() { k.done.Wait() }

// Faults returns all violations that the nodes have seen.
func (k *Kubelets) Faults() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return errors.Join(k.faults...)
}

// Add registers a node with these GPUs. It does not publish them.
func (k *Kubelets) Add(ctx context.Context, name string, gpus []slices.GPU) error {
	k.mu.Lock()
	k.nodes[name] = newNode(name, gpus)
	k.mu.Unlock()
	capacity := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1000"), corev1.ResourceMemory: resource.MustParse("4Ti"), corev1.ResourcePods: resource.MustParse("2000")}
	nodes := k.client.CoreV1().Nodes()
	_, err := nodes.Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64"}},
		Status: corev1.NodeStatus{Capacity: capacity, Allocatable: capacity,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("registering node %s: %w", name, err)
	}
	// A new node has the taint of a node that is not ready, which the node controller removes if it
	// runs.
	if _, err := nodes.Patch(ctx, name, types.MergePatchType, []byte(`{"spec":{"taints":null}}`), metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("registering node %s: %w", name, err)
	}
	return nil
}

// SetGPUs changes the GPUs of a node, as after a change of its hardware. Claims keep their parts.
func (k *Kubelets) SetGPUs(name string, gpus []slices.GPU) {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := k.nodes[name]
	fresh := newNode(name, gpus)
	for device, used := range n.used {
		fresh.used[device] = used
	}
	n.capacity, n.used = fresh.capacity, fresh.used
}

// Lose removes a node without notice, like a power cut: its pods are neither run nor ended.
func (k *Kubelets) Lose(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.nodes, name)
}

func (k *Kubelets) work(ctx context.Context) {
	for {
		key, shutdown := k.queue.Get()
		if shutdown {
			return
		}
		if err := k.sync(ctx, key); err == nil {
			k.queue.Forget(key)
		} else if ctx.Err() == nil {
			k.queue.AddRateLimited(key) // as a kubelet does: missing objects may arrive later
		}
		k.queue.Done(key)
	}
}

func (k *Kubelets) fault(format string, args ...any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.faults = append(k.faults, fmt.Errorf(format, args...))
}

// Beat sends the heartbeats of all nodes until the context ends.
func (k *Kubelets) Beat(ctx context.Context, every time.Duration) {
	for {
		k.mu.Lock()
		var names []string
		for name := range k.nodes {
			names = append(names, name)
		}
		k.mu.Unlock()
		for _, name := range names {
			_ = k.beat(ctx, name) // the next one may succeed
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		}
	}
}
