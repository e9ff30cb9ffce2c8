package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"ration/check/kube/cluster"
	"ration/check/kube/simnode"
	"ration/kube/slices"
)

const (
	gib       = 1 << 30
	namespace = "default"
)

// wanted are the sizes that pods request, in GiB, chosen at random: 25 on average, so that usually
// three pods share a GPU of 80.
var wanted = []int64{10, 20, 30, 40}

// trial is one measurement.
type trial struct {
	size
	c        *cluster.Cluster
	kubelets *simnode.Kubelets

	mu      sync.Mutex
	bound   map[string]bool
	placed  chan struct{} // closed when all pods are
	begin   time.Time
	created time.Duration // until all pods were made
	took    time.Duration // until all pods were placed
	halves  time.Duration // until half of them were

	tried      time.Duration // how long it was
	countAtEnd int           // how many were placed then
	components string        // what the control plane took
}

func (t *trial) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.bound)
}

// each calls a function for 0 to n-1 from all clients.
func (t *trial) each(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	var (
		all  sync.WaitGroup
		errs = make([]error, t.clients)
		next = make(chan int)
	)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for worker := range t.clients {
		all.Go(func() {
			for i := range next {
				if err := do(ctx, i); err != nil {
					errs[worker] = err
					cancel()
					return
				}
			}
		})
	}
	for i := range n {
		select {
		case next <- i:
		case <-ctx.Done():
		}
	}
	close(next)
	all.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}

func nodeName(i int) string { return fmt.Sprintf("node-%04d", i) }

// furnish makes nodes, slices and the class. The slices are those that the plugin would publish; a
// thousand plugins would be a thousand programs.
func (t *trial) furnish(ctx, watching context.Context) error {
	begin := time.Now()
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: slices.Driver}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", slices.Driver)}}}}}
	if _, err := t.c.Client.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return err
	}
	err := t.each(ctx, t.nodes, func(ctx context.Context, i int) error {
		name := nodeName(i)
		gpus := simnode.GPUs(name, t.gpus, 80*gib)
		if err := t.kubelets.Add(ctx, name, gpus); err != nil {
			return err
		}
		pool := slices.Options{}.Resources(name, gpus).Pools[name]
		for _, s := range pool.Slices {
			if _, err := t.c.Client.ResourceV1().ResourceSlices().Create(ctx, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{GenerateName: name + "-"},
				Spec: resourceapi.ResourceSliceSpec{Driver: slices.Driver, NodeName: &name, Devices: s.Devices,
					Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: int64(len(pool.Slices))}}}, metav1.CreateOptions{}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if t.template {
		for _, gibs := range wanted {
			_, err := t.c.Client.ResourceV1().ResourceClaimTemplates(namespace).Create(ctx, &resourceapi.ResourceClaimTemplate{
				ObjectMeta: metav1.ObjectMeta{Name: templateName(gibs)}, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: spec(gibs)}}, metav1.CreateOptions{})
			if err != nil {
				return err
			}
		}
	}
	fmt.Printf("nodes and slices are there after %.0f s\n", time.Since(begin).Seconds())
	return t.watch(watching)
}

func templateName(gibs int64) string { return fmt.Sprintf("gpu-%d", gibs) }

func spec(gibs int64) resourceapi.ResourceClaimSpec {
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: slices.Driver, Capacity: &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			slices.Memory: *resource.NewQuantity(gibs*gib, resource.BinarySI)}}}}}}}
}

// watch counts the pods that are placed.
func (t *trial) watch(ctx context.Context) error {
	t.bound = map[string]bool{}
	factory := informers.NewSharedInformerFactory(t.c.Client, 0)
	informer := factory.Core().V1().Pods().Informer()
	seen := func(o any) {
		pod := o.(*corev1.Pod)
		if pod.Spec.NodeName == "" {
			return
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.bound[pod.Name] {
			return
		}
		t.bound[pod.Name] = true
		switch n := len(t.bound); {
		case n == t.claims:
			t.took = time.Since(t.begin)
			close(t.placed)
		case n == t.claims/2:
			t.halves = time.Since(t.begin)
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: seen, UpdateFunc: func(_, o any) { seen(o) }}); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return context.Cause(ctx)
	}
	return nil
}

// place creates all pods, and waits until they are placed.
func (t *trial) place(ctx context.Context) error {
	sizes := rand.New(rand.NewPCG(1, 2))
	asks := make([]int64, t.claims)
	for i := range asks {
		asks[i] = wanted[sizes.IntN(len(wanted))]
	}
	t.begin = time.Now()
	ended := make(chan struct{})
	defer close(ended)
	go t.show(ended)
	if err := t.each(ctx, t.claims, func(ctx context.Context, i int) error { return t.make(ctx, fmt.Sprintf("pod-%05d", i), asks[i]) }); err != nil {
		return err
	}
	t.created = time.Since(t.begin)
	select {
	case <-t.placed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// show prints the progress.
func (t *trial) show(ended chan struct{}) {
	for {
		select {
		case <-ended:
			return
		case <-time.After(15 * time.Second):
			fmt.Fprintf(os.Stderr, "%.0f s: %d of %d pods are placed\n", time.Since(t.begin).Seconds(), t.count(), t.claims)
		}
	}
}

func (t *trial) make(ctx context.Context, name string, gibs int64) error {
	claim := corev1.PodResourceClaim{Name: "gpu", ResourceClaimName: &name}
	if t.template {
		template := templateName(gibs)
		claim = corev1.PodResourceClaim{Name: "gpu", ResourceClaimTemplateName: &template}
	} else if _, err := t.c.Client.ResourceV1().ResourceClaims(namespace).Create(ctx, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec(gibs)}, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err := t.c.Client.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		ResourceClaims: []corev1.PodResourceClaim{claim},
		Containers:     []corev1.Container{{Name: "c", Image: "none", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}}},
	}}, metav1.CreateOptions{})
	return err
}

// check compares the claims with the capacity of each device, and waits for the nodes' own
// accounts.
func (t *trial) check(ctx context.Context) error {
	if t.took == 0 {
		t.c.StopComponent(cluster.Scheduler) // so that the accounts do not change
	}
	claims, err := t.c.Client.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	used, sum, waiting := map[string]int64{}, int64(0), 0
	for _, claim := range claims.Items {
		if claim.Status.Allocation == nil {
			waiting++
			continue
		}
		if len(claim.Status.Allocation.Devices.Results) != 1 {
			return fmt.Errorf("claim %s is not of one device: %+v", claim.Name, claim.Status.Allocation)
		}
		r := claim.Status.Allocation.Devices.Results[0]
		asked := claim.Spec.Devices.Requests[0].Exactly.Capacity.Requests[slices.Memory]
		has := r.ConsumedCapacity[slices.Memory]
		if has.Cmp(asked) != 0 {
			return fmt.Errorf("claim %s asked for %s and has %s", claim.Name, asked.String(), has.String())
		}
		place := r.Pool + "/" + r.Device
		if used[place] += has.Value(); used[place] > 80*gib {
			return fmt.Errorf("device %s: claims have %d of %d bytes", place, used[place], 80*gib)
		}
		sum += has.Value()
	}
	if t.took > 0 && len(claims.Items)-waiting != t.claims {
		return fmt.Errorf("%d claims have a device, not %d", len(claims.Items)-waiting, t.claims)
	}
	for t.took > 0 && t.kubelets.Used(slices.Memory) != sum {
		if err := t.kubelets.Faults(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the nodes have %d bytes in their books, and the scheduler %d", t.kubelets.Used(slices.Memory), sum)
		case <-time.After(100 * time.Millisecond):
		}
	}
	fmt.Printf("exact: %d GiB of %d GiB are claimed, and no device has more than it holds, nor ever had by the nodes' books\n", sum/gib, t.nodes*t.gpus*80)
	return t.kubelets.Faults()
}

func (t *trial) report() {
	if t.took == 0 {
		fmt.Printf("time is up: %d of %d pods were placed in %.0f s: %.1f pods/s\n", t.countAtEnd, t.claims, t.tried.Seconds(), float64(t.countAtEnd)/t.tried.Seconds())
	} else {
		fmt.Printf("all pods were made after %.1f s, half were placed after %.1f s and all after %.1f s: %.1f pods/s (first half %.1f, second half %.1f)\n",
			t.created.Seconds(), t.halves.Seconds(), t.took.Seconds(), float64(t.claims)/t.took.Seconds(),
			float64(t.claims/2)/t.halves.Seconds(), float64(t.claims-t.claims/2)/(t.took-t.halves).Seconds())
	}
	fmt.Print(t.components)
}

// measure records the resource use of the control plane so far.
func (t *trial) measure() error {
	t.tried, t.countAtEnd = time.Since(t.begin), t.count()
	for _, name := range cluster.Components {
		_, peak, err := t.c.RSS(name)
		if err != nil {
			return err
		}
		cpu, err := t.c.CPU(name)
		if err != nil {
			return err
		}
		t.components += fmt.Sprintf("%-24s %6d MiB at most, %5.0f s of a processor\n", name, peak>>20, cpu.Seconds())
	}
	return nil
}
