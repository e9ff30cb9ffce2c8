package node

import (
	"fmt"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/gpu"
	"ration/internal/job"
	"ration/internal/limit"
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
