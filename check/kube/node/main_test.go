package node

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ration/check/harness"
	"ration/check/kube/chart"
	"ration/check/kube/cluster"
)

// The cluster of all tests, and its only node.
var (
	control          *cluster.Cluster
	here             *Node
	pluginKubeconfig string
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == hostileCommand {
		if err := hostile(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	if testing.Short() {
		fmt.Println("node: skipped: it takes the parts of Kubernetes, and minutes (make e2e-node)")
		return
	}
	if !Inside() {
		if err := Check(); err != nil {
			fmt.Fprintln(os.Stderr, "node:", err)
			os.Exit(1)
		}
		code, err := Isolate()
		if err != nil {
			fmt.Fprintln(os.Stderr, "node:", err)
			code = 1
		}
		os.Exit(code)
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "node:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	defer harness.KillAll()
	ctx := context.Background()
	if err := Furnish(); err != nil {
		return 1, err
	}
	folder := filepath.Join(Folder, "cluster")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return 1, err
	}
	if control, err = cluster.Start(ctx, folder, cluster.Options{Nodes: []string{Name}, Heartbeats: true}); err != nil {
		return 1, err
	}
	kubeconfig, err := control.NodeKubeconfig(Name)
	if err != nil {
		return 1, err
	}
	if here, err = Start(ctx, kubeconfig); err != nil {
		return 1, err
	}
	if err := AwaitReady(ctx, control.Client); err != nil {
		return 1, err
	}
	if err := prepare(ctx); err != nil {
		return 1, err
	}
	if err := here.StartPlugin(ctx, pluginKubeconfig); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// prepare installs the chart, and gives the plugin the account that it has there: a token that is bound to a pod on this node. The
// plugin itself runs outside of a pod, so that tests can kill it.
func prepare(ctx context.Context) error {
	c := control.Client
	if _, err := c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: chart.Namespace}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	objects, err := chart.Render("../../../kube/chart", map[string]any{"nodeSelector": map[string]any{"none": "has-this"}})
	if err != nil {
		return err
	}
	if err := chart.Apply(ctx, control.Config, chart.Namespace, objects); err != nil {
		return err
	}
	pod, err := c.CoreV1().Pods(chart.Namespace).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "plugin"}, Spec: corev1.PodSpec{
		NodeName: Name, ServiceAccountName: chart.ServiceAccount, HostNetwork: true, AutomountServiceAccountToken: new(bool),
		Containers: []corev1.Container{{Name: "plugin", Image: Image, ImagePullPolicy: corev1.PullNever}}}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	token, err := c.CoreV1().ServiceAccounts(chart.Namespace).CreateToken(ctx, chart.ServiceAccount, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: new(int64(24 * 60 * 60)), BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	pluginKubeconfig, err = control.WriteKubeconfig("plugin", token.Status.Token)
	return err
}
