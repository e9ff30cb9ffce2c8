package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/specs-go"

	"ration/check/expect"
	"ration/internal/gpu"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/kube/claim"
	"ration/machine"
)

// podsOfNode is the kubelet's default for the most pods of a node.
const podsOfNode = 110

// The kernel charges the pages of a region to the first process that touches them. For a new job
// that is the plugin, whose memory the chart limits: a node full of pods must not use it up.
func TestRegionsOfAFullNode(t *testing.T) {
	n := newNode(t)
	n.FakeGPU, n.Driver = "", &gpu.Driver{} // a stand-in machine would use memory too
	for _, g := range n.GPUs {
		n.Driver.Devices = append(n.Driver.Devices, gpu.Device{Index: g.Index, UUID: g.UUID, Name: g.Model, Total: limit.Size(g.Memory)})
	}
	for i := range podsOfNode {
		p := n.plan(fmt.Sprintf("6b0e6a3c-8d53-4a76-9d0e-%012d", i), gib)
		p.Rations[0].Shares[0].Compute = 0
		_, err := n.Prepare(p)
		expect.OK(t, err)
	}
	records, err := n.Records()
	expect.OK(t, err)
	expect.Must(t, len(records) == podsOfNode, len(records))
	blocks := func() (bytes int64) {
		for _, r := range records {
			var st unix.Stat_t
			expect.OK(t, unix.Stat(filepath.Join(job.Folder(), r.Jobs()[0], job.RegionName), &st))
			bytes += st.Blocks * 512
		}
		return bytes
	}
	made := blocks()
	expect.True(t, made < 4<<20, podsOfNode, "regions take", made>>10, "KiB")
	// Reading them, as for events and ration ps, takes no more.
	for _, r := range records {
		_, err := machine.ReadJob(r.Jobs()[0])
		expect.OK(t, err)
	}
	expect.Equal(t, blocks(), made)
}

// A device is full when its time is promised, even if it has memory left.
func TestOverbookedByCompute(t *testing.T) {
	n := newNode(t)
	first, second := n.plan(uid, gib), n.plan(other, gib)
	first.Rations[0].Shares[0].Compute, second.Rations[0].Shares[0].Compute = 60, 41
	_, err := n.Prepare(first)
	expect.OK(t, err)
	_, err = n.Prepare(second)
	expect.True(t, errors.Is(err, ErrOverbooked), err)
	second.Rations[0].Shares[0].Compute = 40
	_, err = n.Prepare(second)
	expect.OK(t, err)
}

// The spec is removed first, so that no container is started in a job that is being removed; the
// record is removed last.
func TestOrderOfRemoval(t *testing.T) {
	n := newNode(t)
	p := n.plan(uid, gib)
	_, err := n.Prepare(p)
	expect.OK(t, err)
	is := func(path string) bool {
		_, err := os.Lstat(path)
		return err == nil
	}
	var points []string
	n.Reached = func(point string) {
		points = append(points, point)
		jobs, err := jobsOf(uid)
		expect.OK(t, err)
		expect.True(t, !is(n.specFile(uid)), point, "with a spec")
		expect.Equal(t, len(jobs) == 1, point == PointSpecRemoved, point, jobs)
		expect.Equal(t, is(n.recordFile(uid)), point != PointForgotten, point)
	}
	expect.OK(t, n.Unprepare(uid))
	expect.True(t, slices.Equal(points, []string{PointSpecRemoved, PointJobRemoved, PointForgotten}), points)
}

// While the driver's files are looked for, and the API server is asked, other claims are prepared
// and unprepared.
func TestSlowPartsHoldNoLock(t *testing.T) {
	n := newNode(t)
	n.Hardware = func([]string) (specs.ContainerEdits, error) { return specs.ContainerEdits{}, nil }
	_, err := n.Prepare(n.plan(other, gib))
	expect.OK(t, err)
	during := func() {
		n.Hardware, n.Containers = nil, nil
		expect.OK(t, n.Unprepare(other)) // would wait for ever
	}
	n.Containers = func(string, string, []claim.Pod) (map[string][]Container, error) { during(); return nil, nil }
	_, err = n.Prepare(n.plan(uid, gib))
	expect.OK(t, err)
	_, err = n.Prepare(n.plan(other, gib))
	expect.OK(t, err)
	n.Hardware = func([]string) (specs.ContainerEdits, error) { during(); return specs.ContainerEdits{}, nil }
	_, err = n.Prepare(n.plan(uid, gib))
	expect.OK(t, err)
}
