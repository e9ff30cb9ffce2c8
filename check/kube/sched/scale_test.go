package sched

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ration/check/expect"
	"ration/check/kube/cluster"
	"ration/check/kube/simnode"
	"ration/kube/slices"
)

// How much BenchmarkScale asks for. make e2e-scale passes these.
var scale struct {
	nodes, gpus, claims, score int
	template                   bool
	within                     time.Duration
}

func init() {
	flag.IntVar(&scale.nodes, "nodes", 100, "nodes")
	flag.IntVar(&scale.gpus, "gpus", 8, "GPUs of 80 GiB of each node")
	flag.IntVar(&scale.claims, "claims", 2000, "pods, each with a claim")
	flag.IntVar(&scale.score, "score", 0, "the scheduler's percentageOfNodesToScore; 0 is its default")
	flag.BoolVar(&scale.template, "template", false, "claims are made by a controller, from templates")
	flag.DurationVar(&scale.within, "within", time.Hour, "place pods for no longer than this")
}

// options returns those of the cluster: a measurement is not slowed down by a limit on requests.
func options() cluster.Options {
	if flag.Lookup("test.bench").Value.String() == "" {
		return cluster.Options{}
	}
	return cluster.Options{RequestsPerSecond: 5000, ScorePercent: scale.score}
}

// The stock scheduler places claims for parts of GPUs on many nodes exactly. How many pods it places in a second,
// and what the control plane takes for it, is printed.
func BenchmarkScale(b *testing.B) {
	w := newWorld(b, 0, 0)
	for i := range scale.nodes {
		node := fmt.Sprintf("node-%04d", i)
		w.gpus[node] = simnode.GPUs(node, scale.gpus, 80*gib)
	}
	fmt.Printf("%d nodes × %d GPUs × 80 GiB, %d pods with a claim each, from %d clients; %d processors\n", scale.nodes, scale.gpus, scale.claims, clients, runtime.NumCPU())
	w.eachOf(scale.nodes, func(i int) error { return w.publishAsAdmin(fmt.Sprintf("node-%04d", i)) })
	// 25 GiB on average, so that usually three pods share a GPU of 80.
	wanted, sizes := make([]want, scale.claims), rand.New(rand.NewPCG(1, 2))
	for i := range wanted {
		wanted[i].memory = fmt.Sprintf("%dGi", 10*(1+sizes.IntN(4)))
	}
	if scale.template {
		for _, memory := range []string{"10Gi", "20Gi", "30Gi", "40Gi"} {
			_, err := control.Client.ResourceV1().ResourceClaimTemplates(w.name).Create(w.ctx, &resourceapi.ResourceClaimTemplate{
				ObjectMeta: metav1.ObjectMeta{Name: templateOf(memory)},
				Spec:       resourceapi.ResourceClaimTemplateSpec{Spec: want{memory: memory}.claim()}}, metav1.CreateOptions{})
			w.must(err)
		}
	}
	begin, before := time.Now(), kubelets.Placed()
	w.eachOf(scale.claims, func(i int) error { return w.askAnywhere(fmt.Sprintf("pod-%05d", i), wanted[i]) })
	created := time.Since(begin)
	half, all := w.placed(begin, before+scale.claims/2), w.placed(begin, before+scale.claims)
	rate := func(pods int, took time.Duration) float64 { return float64(pods) / took.Seconds() }
	fmt.Printf("all pods were made after %.1f s, half were placed after %.1f s and all after %.1f s: %.1f pods/s (first half %.1f, second half %.1f)\n",
		created.Seconds(), half.Seconds(), all.Seconds(), rate(scale.claims, all), rate(scale.claims/2, half), rate(scale.claims-scale.claims/2, all-half))
	for _, name := range cluster.Components {
		peak, cpu, err := control.Usage(name)
		w.must(err)
		fmt.Printf("%-24s %6d MiB at most, %5.0f s of a processor\n", name, peak>>20, cpu.Seconds())
	}
	byClaim := map[string]want{} // those of templates have names of the controller's
	for i := range wanted {
		byClaim[fmt.Sprintf("pod-%05d", i)] = wanted[i]
	}
	w.settled(byClaim)
}

// eachOf calls a function for 0 to n-1 from all clients.
func (w *world) eachOf(n int, do func(i int) error) {
	w.Helper()
	w.concurrently(func(client int) error {
		for i := client; i < n; i += clients {
			if err := do(i); err != nil {
				return err
			}
		}
		return nil
	})
}

// publishAsAdmin makes a node and the slices that its plugin would publish: a thousand plugins would be a
// thousand programs.
func (w *world) publishAsAdmin(node string) error {
	if err := kubelets.Add(w.ctx, node, w.gpus[node]); err != nil {
		return err
	}
	pool := slices.Options{}.Resources(node, w.gpus[node]).Pools[node]
	for _, s := range pool.Slices {
		_, err := control.Client.ResourceV1().ResourceSlices().Create(w.ctx, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{GenerateName: node + "-"},
			Spec: resourceapi.ResourceSliceSpec{Driver: slices.Driver, NodeName: &node, Devices: s.Devices,
				Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: int64(len(pool.Slices))}}}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
	}
	return nil
}

func templateOf(memory string) string { return "gpu-" + memory[:2] }

// askAnywhere makes a pod for any node, with a claim or a template of one.
func (w *world) askAnywhere(name string, wanted want) error {
	pod := w.podFor(name, name)
	pod.Spec.NodeSelector = nil
	if scale.template {
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new(templateOf(wanted.memory))}}
		return w.makePod(pod)
	}
	return errors.Join(w.makeClaim(name, wanted), w.makePod(pod))
}

// placed waits until so many pods have a node, and returns how long that took.
func (w *world) placed(begin time.Time, pods int) time.Duration {
	w.Helper()
	for kubelets.Placed() < pods {
		expect.Must(w, time.Since(begin) < scale.within, "time is up:", kubelets.Placed(), "pods are placed, not", pods)
		time.Sleep(20 * time.Millisecond)
	}
	return time.Since(begin)
}
