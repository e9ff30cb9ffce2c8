package plugin

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"ration/check/expect"
	"ration/kube/claim"
	kubeslices "ration/kube/slices"
)

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// newQuotaCluster returns a cluster in which a namespace may have 10 GiB. Its API server gives each
// ConfigMap a version, and refuses to update one that has changed since it was read.
func newQuotaCluster(t *testing.T) *cluster {
	t.Helper()
	c := newCluster(t)
	c.config.MaxNamespaceMemory, c.config.Namespace = 10<<30, "ration-system"
	version := 1
	c.client.PrependReactor("create", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
		action.(clienttesting.CreateAction).GetObject().(*corev1.ConfigMap).ResourceVersion = fmt.Sprint(version)
		return false, nil, nil
	})
	c.client.PrependReactor("update", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
		update := action.(clienttesting.UpdateAction).GetObject().(*corev1.ConfigMap)
		now, err := c.client.Tracker().Get(configMaps, update.Namespace, update.Name)
		if err != nil || update.ResourceVersion != "" && now.(*corev1.ConfigMap).ResourceVersion != update.ResourceVersion {
			return true, nil, apierrors.NewConflict(configMaps.GroupResource(), update.Name, err)
		}
		version++
		update.ResourceVersion = fmt.Sprint(version)
		return false, nil, nil
	})
	return c
}

// quota returns the ConfigMap of the namespace ns.
func (c *cluster) quota() *corev1.ConfigMap {
	c.t.Helper()
	quota, err := c.client.CoreV1().ConfigMaps("ration-system").Get(c.t.Context(), "ration-quota-ns", metav1.GetOptions{})
	expect.OK(c.t, err)
	return quota
}

const beyondNamespace = "namespace ns would have 12884901888 bytes of memory with claim claim%d, in 2 claims, and may have 10737418240"

// The claims of a namespace have at most the bound together. A claim that waits keeps no other from
// being admitted, and is admitted when there is room.
func TestMaxNamespaceMemory(t *testing.T) {
	c := newQuotaCluster(t)
	c.start()
	six, second, four := newClaim(c, 1, "6Gi"), newClaim(c, 2, "6Gi"), newClaim(c, 3, "4Gi")
	elsewhere := newClaim(c, 4, "10Gi")
	elsewhere.Namespace = "other"
	alone := twice(c, newClaim(c, 5, "6Gi"))
	c.add(six, second, four, elsewhere, alone)
	refused := func(claim *resourceapi.ResourceClaim, want string) {
		t.Helper()
		got := c.prepare(claim)[string(claim.UID)].Error
		expect.True(t, (got == "") == (want == "") && strings.Contains(got, want), got, "want", want)
	}
	refused(alone, "would have 12884901888 bytes of memory with claim claim5, in 1 claims")
	refused(six, "")
	refused(second, fmt.Sprintf(beyondNamespace, 2))
	refused(elsewhere, "")
	refused(four, "")
	last := c.quota().Data[quotaWrite]
	refused(six, "") // the kubelet asks again
	expect.True(t, c.quota().Data[quotaWrite] != last, "a write that changes nothing is no write: another plugin's that read the same would succeed")
	refused(second, "in 3 claims")
	c.unprepare(six)
	refused(second, "in 3 claims") // it is still allocated
	expect.OK(t, c.client.ResourceV1().ResourceClaims("ns").Delete(t.Context(), six.Name, metav1.DeleteOptions{}))
	refused(second, "")
	expect.Equal(t, len(strings.Fields(c.quota().Data[quotaClaims])), 2)
}

// Another node's plugin admits a claim while this one adds up: one of the two is refused.
func TestNamespaceMemoryOnTwoNodes(t *testing.T) {
	for _, name := range []string{"the first of the namespace", "another is admitted"} {
		t.Run(name, func(t *testing.T) {
			c := newQuotaCluster(t)
			c.start()
			own, other := newClaim(c, 1, "6Gi"), newClaim(c, 2, "6Gi")
			other.Status.Allocation.Devices.Results[0].Pool = "another-node"
			c.add(own, other)
			quota := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ration-system", Name: quotaName("ns"), ResourceVersion: "1"}}
			if name == "another is admitted" {
				expect.OK(t, c.client.Tracker().Add(quota))
			}
			lists := 0
			c.client.PrependReactor("list", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
				if lists++; lists > 1 {
					return false, nil, nil
				}
				quota.ResourceVersion, quota.Data = "another", map[string]string{quotaClaims: string(other.UID)}
				if name == "another is admitted" {
					return false, nil, c.client.Tracker().Update(configMaps, quota, "ration-system")
				}
				return false, nil, c.client.Tracker().Add(quota)
			})
			got := c.prepare(own)[string(own.UID)].Error
			expect.True(t, strings.Contains(got, fmt.Sprintf(beyondNamespace, 1)), got)
			expect.Equal(t, c.records(), 0)
		})
	}
}

// Of twenty claims on twenty nodes at once, as many are admitted as the namespace may have.
func TestNamespaceMemoryAtOnce(t *testing.T) {
	c := newQuotaCluster(t)
	var done sync.WaitGroup
	var admitted atomic.Int32
	for i := range 20 {
		own := newClaim(c, i, "2Gi")
		c.add(own)
		plan, err := claim.Read(own, nodeName, c.config.Node.Devices())
		expect.OK(t, err)
		p := &Plugin{Config: c.config, running: t.Context()}
		done.Go(func() {
			if err := p.admit(plan, p.MaxNamespaceMemory); err == nil {
				admitted.Add(1)
			} else {
				expect.True(t, strings.Contains(err.Error(), "and may have"), err)
			}
		})
	}
	done.Wait()
	expect.Equal(t, admitted.Load(), 5)
}

// Claims that were prepared before there was a bound count, whatever they have; those that are gone do not.
func TestNamespaceMemoryBefore(t *testing.T) {
	c := newQuotaCluster(t)
	most := c.config.MaxNamespaceMemory
	c.config.MaxNamespaceMemory = 0
	c.start()
	before, gone, after := newClaim(c, 1, "11Gi"), newClaim(c, 2, "1Gi"), newClaim(c, 3, "1Gi")
	c.add(before, gone, after)
	for uid, r := range c.prepare(before, gone) {
		expect.Must(t, r.Error == "", "claim", uid, r.Error)
	}
	c.stop()
	expect.OK(t, c.client.ResourceV1().ResourceClaims("ns").Delete(t.Context(), gone.Name, metav1.DeleteOptions{}))
	c.config.MaxNamespaceMemory = most
	p := &Plugin{Config: c.config, running: t.Context()}
	expect.OK(t, p.tryAdmitPrepared(t.Context()))
	c.start()
	got := c.prepare(after)[string(after.UID)].Error
	expect.True(t, strings.Contains(got, "in 2 claims, and may have 10737418240"), got)
}

// What a claim has of another driver does not count.
func TestAllocatedMemory(t *testing.T) {
	c := newCluster(t)
	own := twice(c, newClaim(c, 1, "1Gi"))
	own.Status.Allocation.Devices.Results[1].Driver = "gpu.example.com"
	expect.Equal(t, allocatedMemory(own), 1<<30)
	own.Status.Allocation.Devices.Results[1].Driver = kubeslices.Driver
	expect.Equal(t, allocatedMemory(own), 2<<30)
}
