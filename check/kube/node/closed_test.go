package node

import (
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ration/kube/slices"
)

// A claim of which nobody says how much it has, as of a scheduler that does not know of shared devices, is not prepared: its
// pod does not start, and its events say why.
func TestFailsClosed(t *testing.T) {
	w := newWorld(t)
	w.makeClaim("all", "1Gi")
	wanted := w.podFor("a", "all", "one")
	wanted.Spec.NodeName = Name // no scheduler is asked
	w.makePod(wanted)
	pod, err := control.Client.CoreV1().Pods(w.name).Get(w.ctx, "a", metav1.GetOptions{})
	w.must(err)
	var list *resourceapi.ResourceSliceList
	w.eventually("the plugin to publish its GPUs", func() (err error) {
		list, err = control.Client.ResourceV1().ResourceSlices().List(w.ctx, metav1.ListOptions{})
		if err == nil && (len(list.Items) != 1 || len(list.Items[0].Spec.Devices) != 2) {
			err = fmt.Errorf("it published %+v", list.Items)
		}
		return err
	})
	claims := control.Client.ResourceV1().ResourceClaims(w.name)
	w.eventually("the claim to be allocated", func() error {
		claim, err := claims.Get(w.ctx, "all", metav1.GetOptions{})
		if err != nil {
			return err
		}
		claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
			{Request: "gpu", Driver: slices.Driver, Pool: Name, Device: list.Items[0].Spec.Devices[0].Name}}}}
		claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: pod.Name, UID: pod.UID}}
		_, err = claims.UpdateStatus(w.ctx, claim, metav1.UpdateOptions{})
		return err
	})
	w.eventually("an event that says why", func() error {
		if events := w.events("a"); !strings.Contains(events, "FailedPrepareDynamicResources") || !strings.Contains(events, "DRAConsumableCapacity") {
			return fmt.Errorf("events: %s", events)
		}
		return nil
	})
	w.delete("a")
	w.gone("a")
	w.nothingLeft()
	// As it has no share, the scheduler takes it for one of the whole device while it is there.
	w.must(claims.Delete(w.ctx, "all", metav1.DeleteOptions{}))
	w.eventually("the claim to go", func() error {
		_, err := claims.Get(w.ctx, "all", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there (%v)", err)
	})
}
