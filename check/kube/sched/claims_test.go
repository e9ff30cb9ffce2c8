package sched

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"ration/check/expect"
	"ration/check/kube/cluster"
	"ration/kube/slices"
)

// deleting fails the test unless a claim is there, and marked for deletion.
func (w *world) deleting(claim string) {
	w.Helper()
	expect.Must(w, w.claim(claim).DeletionTimestamp != nil, "claim", claim, "is not being deleted")
}

// A claim that nothing has been allocated to goes at once, and a pod that waits for it is placed with the next of its name.
func TestDeletePending(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.must(w.makeClaim("unused", want{memory: "1Gi"}))
	w.deleteClaim("unused")
	w.claimGone("unused")
	w.ask("large", want{memory: "81Gi"})
	w.refused("large")
	w.deleteClaim("large")
	w.claimGone("large")
	w.must(w.makeClaim("large", want{memory: "80Gi"}))
	w.runs("large")
}

// A claim of a running pod stays until the pod has gone, and so does what it has. It takes no further pods.
func TestDeleteRunning(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.ask("first", want{memory: "60Gi"})
	w.runs("first")
	w.deleteClaim("first")
	w.deleteClaim("first") // twice is once
	w.deleting("first")
	w.ask("second", want{memory: "30Gi"})
	w.refused("second")
	w.must(w.makePod(w.podFor("late", "first"))) // the scheduler does not even try
	expect.Equal(t, w.pod("first").Status.Phase, corev1.PodRunning, "the pod has ended")
	w.has("first", slices.Memory, 60*gib)
	w.deletePod("first")
	w.claimGone("first")
	w.runs("second")
	expect.Equal(t, w.pod("late").Spec.NodeName, "", "the node of a pod with a claim that was being deleted")
	w.must(w.makeClaim("first", want{memory: "50Gi"}))
	w.runs("late")
}

// A claim of a pod that was placed, and whose node has not started it, is held as one of a running pod.
func TestDeleteReserved(t *testing.T) {
	w := newWorld(t, 1, 1)
	node := w.name + "-0"
	kubelets.Lose(node) // it starts nothing any more, but nobody knows
	w.ask("first", want{memory: "60Gi"})
	w.eventually("the pod to be placed", func() error {
		if w.pod("first").Spec.NodeName == "" {
			return fmt.Errorf("it is not")
		}
		return nil
	})
	w.deleteClaim("first")
	w.deleting("first")
	w.has("first", slices.Memory, 60*gib)
	w.ask("second", want{memory: "30Gi"})
	w.refused("second")
	w.must(control.Client.CoreV1().Pods(w.name).Delete(w.ctx, "first", force))
	w.claimGone("first")
	w.eventually("the second pod to be placed", func() error {
		if w.pod("second").Spec.NodeName == "" {
			return fmt.Errorf("it is not: %s", refusal(w.pod("second")))
		}
		return nil
	})
}

// While no controller runs, a claim stays allocated and reserved for a pod that has gone. What it has is not handed
// out again before a controller has seen it.
func TestDeleteAllocated(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.ask("kept", want{memory: "20Gi"})
	w.runs("kept")
	w.ask("first", want{memory: "60Gi"})
	w.runs("first")
	control.StopComponent(cluster.ControllerManager)
	w.deletePod("kept")
	w.deletePod("first")
	w.gone("kept")
	w.gone("first")
	w.deleteClaim("first")
	w.deleting("first")
	w.has("first", slices.Memory, 60*gib)
	w.ask("second", want{memory: "30Gi"})
	w.refused("second")
	w.must(control.StartControllerManager(w.ctx))
	w.claimGone("first")
	w.runs("second")
	// The claim that was not deleted stays, and has nothing.
	w.eventually("the other claim to be free", func() error {
		if s := w.claim("kept").Status; s.Allocation != nil || len(s.ReservedFor) > 0 {
			return fmt.Errorf("it has %+v", s)
		}
		return nil
	})
}

// A pod that is being deleted keeps what it has until its node has let it go.
func TestDeleteWhileTerminating(t *testing.T) {
	w := newWorld(t, 1, 1)
	node := w.name + "-0"
	w.ask("first", want{memory: "60Gi"})
	w.runs("first")
	kubelets.Lose(node) // its program does not end
	w.deletePod("first")
	w.deleteClaim("first")
	w.deleting("first")
	w.ask("second", want{memory: "30Gi"})
	w.refused("second")
	expect.True(t, w.pod("first").DeletionTimestamp != nil, "the pod is not being deleted")
	w.must(control.Client.CoreV1().Pods(w.name).Delete(w.ctx, "first", force))
	w.claimGone("first")
	w.eventually("the second pod to be placed", func() error {
		if w.pod("second").Spec.NodeName == "" {
			return fmt.Errorf("it is not: %s", refusal(w.pod("second")))
		}
		return nil
	})
}

// A tenant who may change claims cannot have one forgotten whose memory a pod has. It goes with the pod.
func TestFinalizerStays(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.ask("kept", want{memory: "1Gi"})
	w.runs("kept")
	role := &rbac.Role{ObjectMeta: metav1.ObjectMeta{Name: "claims"}, Rules: []rbac.PolicyRule{{APIGroups: []string{"resource.k8s.io"}, Resources: []string{"resourceclaims"}, Verbs: []string{"get", "update", "patch", "delete"}}}}
	_, err := control.Client.RbacV1().Roles(w.name).Create(w.ctx, role, metav1.CreateOptions{})
	w.must(err)
	_, err = control.Client.RbacV1().RoleBindings(w.name).Create(w.ctx, &rbac.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "claims"},
		RoleRef: rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "Role", Name: "claims"}, Subjects: []rbac.Subject{{APIGroup: rbac.GroupName, Kind: rbac.UserKind, Name: "tenant"}}}, metav1.CreateOptions{})
	w.must(err)
	client, err := kubernetes.NewForConfig(control.As("tenant", "system:authenticated"))
	w.must(err)
	tenant := client.ResourceV1().ResourceClaims(w.name)
	w.eventually("the tenant's rights", func() error {
		_, err := tenant.Patch(w.ctx, "kept", types.MergePatchType, []byte(`{"metadata":{"labels":{"mine":"yes"}}}`), metav1.PatchOptions{})
		return err
	})
	w.refuses("stays while a pod has its memory", func() error {
		_, err := tenant.Patch(w.ctx, "kept", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		return err
	})
	w.must(tenant.Delete(w.ctx, "kept", metav1.DeleteOptions{}))
	w.deleting("kept")
	w.deletePod("kept")
	w.claimGone("kept")
}
