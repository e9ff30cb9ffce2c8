package sched

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ration/check/expect"
	"ration/kube/slices"
)

const clients = 20

// concurrently runs a function for each of the clients at the same time.
func (w *world) concurrently(do func(client int) error) {
	w.Helper()
	errs := make([]error, clients)
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() { errs[i] = do(i) })
	}
	all.Wait()
	w.must(errors.Join(errs...))
}

func (w *world) pods() []corev1.Pod {
	w.Helper()
	list, err := control.Client.CoreV1().Pods(w.name).List(w.ctx, metav1.ListOptions{})
	w.must(err)
	return list.Items
}

// A hundred times 1 GiB from twenty clients at once, of 80 GiB: exactly eighty are placed.
func TestBurstOfEqual(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.concurrently(func(client int) error {
		for i := range 5 {
			name := fmt.Sprintf("p-%d-%d", client, i)
			if err := errors.Join(w.makeClaim(name, want{memory: "1Gi"}), w.makePod(w.podFor(name, name))); err != nil {
				return err
			}
		}
		return nil
	})
	w.settled(nil)
	running := 0
	for _, pod := range w.pods() {
		if pod.Status.Phase == corev1.PodRunning {
			running++
		}
	}
	expect.Equal(t, running, 80, "of 100 pods run, want 80")
}

// device is the place of a device in books.
type device struct{ node, name string }

// settled waits until every pod runs or has been refused, and each refused one fits on no device; and checks the
// scheduler's books of every device, to the byte. Requests are by the name of a claim, if not equal.
func (w *world) settled(wanted map[string]want) {
	w.Helper()
	w.eventually("every pod to run or to fit nowhere", func() error {
		free := map[device]map[resourceapi.QualifiedName]int64{}
		for node, gpus := range w.gpus {
			for _, g := range gpus {
				free[device{node, g.Name()}] = map[resourceapi.QualifiedName]int64{slices.Memory: int64(g.Capacity()), slices.Compute: 100}
			}
		}
		claims, err := control.Client.ResourceV1().ResourceClaims(w.name).List(w.ctx, metav1.ListOptions{})
		w.must(err)
		requests := map[string]resourceapi.DeviceRequest{}
		for _, claim := range claims.Items {
			requests[claim.Name] = claim.Spec.Devices.Requests[0]
			if claim.Status.Allocation == nil {
				continue
			}
			for _, r := range claim.Status.Allocation.Devices.Results {
				left := free[device{r.Pool, r.Device}]
				for _, name := range []resourceapi.QualifiedName{slices.Memory, slices.Compute} {
					quantity := r.ConsumedCapacity[name]
					left[name] -= quantity.Value()
					expect.Must(w, left[name] >= 0,
						"device", r.Device, "of", r.Pool, "claims have", -left[name], "of", name, "more than there is")
				}
				w.rounded(claim.Name, wanted, r.ConsumedCapacity)
			}
		}
		for _, pod := range w.pods() {
			if pod.DeletionTimestamp != nil {
				return fmt.Errorf("pod %s is being deleted", pod.Name)
			}
			if pod.Status.Phase == corev1.PodRunning {
				continue
			}
			if pod.Spec.NodeName != "" || refusal(&pod) == "" {
				return fmt.Errorf("pod %s is %s", pod.Name, pod.Status.Phase)
			}
			needs := requests[*pod.Spec.ResourceClaims[0].ResourceClaimName].Exactly.Capacity.Requests
			for place, left := range free {
				memory, compute := needs[slices.Memory], needs[slices.Compute]
				if roundUp(memory) <= left[slices.Memory] && compute.Value() <= left[slices.Compute] {
					return fmt.Errorf("pod %s waits for %s, and device %s of %s has %d", pod.Name, memory.String(), place.name, place.node, left[slices.Memory])
				}
			}
		}
		return nil
	})
}

func roundUp(q resource.Quantity) int64 {
	return max(slices.LeastMemory, (q.Value()+slices.Step-1)/slices.Step*slices.Step)
}

// rounded checks that a claim has what it asked for.
func (w *world) rounded(claim string, wanted map[string]want, has map[resourceapi.QualifiedName]resource.Quantity) {
	w.Helper()
	asked, known := wanted[claim]
	if !known {
		return
	}
	memory := has[slices.Memory]
	expect.Must(w, memory.Value() == roundUp(resource.MustParse(asked.memory)),
		"claim", claim, "asked for", asked.memory, "and has", memory.Value())
}

// Pods of all sizes, with and without a share of the time, come and go at once from twenty clients. No device ever
// has more than it can hold, by the books of the scheduler and of the nodes, and what fits runs.
func TestBurst(t *testing.T) {
	w := newWorld(t, 3, 2)
	const each = 12
	var (
		mu     sync.Mutex
		wanted = map[string]want{}
	)
	made := make([][]string, clients)
	create := func(client, from int) error {
		r := rand.New(rand.NewPCG(uint64(client), uint64(from)))
		for i := range each {
			name := fmt.Sprintf("p-%d-%d", client, from+i)
			asks := want{memory: fmt.Sprint(r.Int64N(9*gib) + 1)}
			if r.IntN(3) == 0 {
				asks.compute = fmt.Sprint(r.IntN(30) + 1)
			}
			mu.Lock()
			wanted[name] = asks
			mu.Unlock()
			if err := errors.Join(w.makeClaim(name, asks), w.makePod(w.podFor(name, name))); err != nil {
				return err
			}
			made[client] = append(made[client], name)
		}
		return nil
	}
	w.concurrently(func(client int) error { return create(client, 0) })
	w.settled(wanted)
	// Half of them go, whatever their state is, while as many come.
	w.concurrently(func(client int) error {
		for _, name := range made[client][:each/2] {
			err := control.Client.CoreV1().Pods(w.name).Delete(w.ctx, name, metav1.DeleteOptions{})
			err = errors.Join(err, control.Client.ResourceV1().ResourceClaims(w.name).Delete(w.ctx, name, metav1.DeleteOptions{}))
			if err != nil {
				return err
			}
		}
		return create(client, each)
	})
	w.settled(wanted)
	w.eventually("the deleted claims to go", func() error {
		claims, err := control.Client.ResourceV1().ResourceClaims(w.name).List(w.ctx, metav1.ListOptions{})
		if err == nil && len(claims.Items) != clients*each*3/2 {
			err = fmt.Errorf("%d claims, want %d", len(claims.Items), clients*each*3/2)
		}
		return err
	})
}
