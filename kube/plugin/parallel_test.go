package plugin

import (
	"sync"
	"testing"
	"time"

	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	"tags.cncf.io/container-device-interface/specs-go"

	"ration/check/expect"
)

// A call of the kubelet does not wait for another's claim: the driver's answer about the first GPU comes only after a
// claim of the second GPU is prepared.
func TestCallsInParallel(t *testing.T) {
	c := newCluster(t)
	gpus := c.config.Node.GPUs
	asked, prepared, alone := make(chan struct{}), make(chan struct{}), false
	c.config.Node.Hardware = func(uuids []string) (out specs.ContainerEdits, err error) {
		if uuids[0] != gpus[0].UUID {
			return out, nil
		}
		close(asked)
		select {
		case <-prepared:
		case <-time.After(10 * time.Second): // only if the other call waits for this one
			alone = true
		}
		return out, nil
	}
	c.start()
	slow, other := newClaim(c, 1, "1Gi"), newClaim(c, 2, "1Gi")
	other.Status.Allocation.Devices.Results[0].Device = gpus[1].Name()
	c.add(slow, other)
	var call sync.WaitGroup
	call.Go(func() {
		out, err := c.dra.NodePrepareResources(t.Context(), &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{{Namespace: slow.Namespace, Name: slow.Name, Uid: string(slow.UID)}}})
		expect.True(t, err == nil && out.Claims[string(slow.UID)].Error == "", out, err)
	})
	<-asked
	expect.Equal(t, c.prepare(other)[string(other.UID)].Error, "")
	close(prepared)
	call.Wait()
	expect.True(t, !alone, "calls wait for each other")
	c.unprepare(slow, other)
}
