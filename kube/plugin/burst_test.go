package plugin

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	resourceapi "k8s.io/api/resource/v1"

	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	"ration/check/expect"
	"ration/internal/gpu"
	"ration/internal/limit"
)

// BenchmarkBurst prepares as many claims at once as a node has pods by default, each by a call of its own to the
// plugin's socket, as the kubelet does. It reports how long the calls took, and the processor's time of this process,
// which is also the kubelet and the API server here.
func BenchmarkBurst(b *testing.B) {
	const pods = 110
	c := newCluster(b)
	c.likeANode()
	var claims []*resourceapi.ResourceClaim
	for i := range pods {
		claims = append(claims, newClaim(c, i, "1Gi"))
	}
	c.add(claims...)
	c.start()
	var took []time.Duration
	var used time.Duration
	for b.Loop() {
		before := processorTime(b)
		took = append(took, c.burst(b, claims)...)
		used += processorTime(b) - before
		b.StopTimer()
		c.unprepare(claims...)
		b.StartTimer()
	}
	slices.Sort(took)
	for _, at := range []int{50, 99} {
		b.ReportMetric(float64(took[len(took)*at/100].Microseconds())/1000, fmt.Sprintf("ms-p%d", at))
	}
	b.ReportMetric(float64(used.Microseconds())/1000/float64(len(took)), "processor-ms/claim")
}

// likeANode lets the plugin make jobs as on a node with GPUs: without a stand-in machine, and in memory, as the folders of
// jobs and specs are there. Records are on a disk.
func (c *cluster) likeANode() {
	c.t.Helper()
	n := c.config.Node
	n.FakeGPU, n.Driver = "", &gpu.Driver{}
	for _, g := range n.GPUs {
		n.Driver.Devices = append(n.Driver.Devices, gpu.Device{Index: g.Index, UUID: g.UUID, Name: g.Model, Total: limit.Size(g.Memory)})
	}
	c.inMemory()
}

// inMemory puts jobs and specs into memory, as on a node.
func (c *cluster) inMemory() {
	c.t.Helper()
	run, err := os.MkdirTemp("/dev/shm", "rk")
	expect.OK(c.t, err)
	c.t.Setenv("RATION_DIR", filepath.Join(run, "jobs"))
	c.config.Node.CDI = filepath.Join(run, "cdi")
	c.t.Cleanup(func() {
		c.end()
		expect.Equal(c.t, os.RemoveAll(run), nil)
	})
}

// burst prepares all claims at the same time, and returns how long each call took.
func (c *cluster) burst(b testing.TB, claims []*resourceapi.ResourceClaim) []time.Duration {
	took := make([]time.Duration, len(claims))
	var all sync.WaitGroup
	for i, cl := range claims {
		all.Go(func() {
			begun := time.Now()
			r := &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{{Namespace: cl.Namespace, Name: cl.Name, Uid: string(cl.UID)}}}
			out, err := c.dra.NodePrepareResources(b.Context(), r)
			took[i] = time.Since(begun)
			expect.True(b, err == nil && out.Claims[string(cl.UID)].Error == "", out, err)
		})
	}
	all.Wait()
	return took
}

func processorTime(b *testing.B) time.Duration {
	var use unix.Rusage
	expect.OK(b, unix.Getrusage(unix.RUSAGE_SELF, &use))
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
