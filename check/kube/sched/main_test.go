// Package sched tests placement by the stock scheduler: real etcd, kube-apiserver, kube-scheduler and
// kube-controller-manager, and nodes that stand in for real ones with GPUs that the kubelet plugin's own
// code publishes.
package sched

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ration/check/harness"
	"ration/check/kube/chart"
	"ration/check/kube/cluster"
	"ration/check/kube/simnode"
)

// The cluster of all tests. Each test has nodes and a namespace of its own.
var (
	control  *cluster.Cluster
	kubelets *simnode.Kubelets
)

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		fmt.Println("sched: skipped: it takes the parts of Kubernetes, and minutes (make e2e-sched)")
		return
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "sched:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	defer harness.KillAll()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	folder, err := os.MkdirTemp("", "ration-e2e-")
	if err != nil {
		return 1, err
	}
	defer func() {
		if code == 0 && err == nil {
			err = os.RemoveAll(folder)
		} else {
			fmt.Fprintln(os.Stderr, "sched: what the components wrote is in", folder)
		}
	}()
	if control, err = cluster.Start(ctx, folder, options()); err != nil {
		if errors.Is(err, cluster.ErrNotBuilt) {
			err = fmt.Errorf("%w; it needs no root and no GPU", err)
		}
		return 1, err
	}
	defer control.Stop()
	watching, end := context.WithCancel(ctx)
	defer end()
	if kubelets, err = simnode.Start(watching, control.Client, clients); err != nil {
		return 1, err
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: chart.Namespace}}
	if _, err := control.Client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		return 1, err
	}
	if err := install(ctx, map[string]any{}); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// install installs the chart with values, or upgrades it, as an administrator does. The plugin itself is placed nowhere.
func install(ctx context.Context, values map[string]any) error {
	values["nodeSelector"] = map[string]any{"none": "has-this"}
	objects, err := chart.Render("../../../kube/chart", values)
	if err != nil {
		return err
	}
	return chart.Apply(ctx, control.Config, chart.Namespace, objects)
}
