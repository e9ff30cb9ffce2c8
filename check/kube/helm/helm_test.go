// Package helm runs the commands of the chart's page, with Helm itself, on a control plane of this machine.
package helm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"ration/check/expect"
	"ration/check/harness"
	"ration/check/kube/chart"
	"ration/check/kube/cluster"
)

const root = "../../.."

// world is a cluster, and the commands of the page.
type world struct {
	*testing.T
	ctx      context.Context
	cluster  *cluster.Cluster
	commands map[string]string // by the heading that they are below
	env      []string
}

// The page's blocks that this test runs, below their headings.
var (
	heading = regexp.MustCompile(`(?m)^## (.*)$`)
	block   = regexp.MustCompile("(?ms)^```sh helm\n(.*?)^```$")
)

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, ctx: t.Context(), commands: map[string]string{}}
	page, err := os.ReadFile(filepath.Join(root, "kube/chart/README.md"))
	expect.OK(t, err)
	headings := heading.FindAllSubmatchIndex(page, -1)
	for i, at := range headings {
		end := len(page)
		if i+1 < len(headings) {
			end = headings[i+1][0]
		}
		for _, b := range block.FindAllSubmatch(page[at[1]:end], -1) {
			w.commands[string(page[at[2]:at[3]])] += string(b[1])
		}
	}
	expect.Equal(t, strings.Join(slices.Sorted(maps.Keys(w.commands)), ", "), "Install, Roll back, Uninstall, Upgrade")

	t.Cleanup(harness.KillAll)
	folder := t.TempDir()
	w.cluster, err = cluster.Start(w.ctx, folder, cluster.Options{})
	expect.Must(t, !errors.Is(err, cluster.ErrNotBuilt), err, "(make e2e-sched builds it)")
	expect.OK(t, err)
	t.Cleanup(w.cluster.Stop)
	kubeconfig, err := w.cluster.WriteKubeconfig("helm", w.cluster.Config.BearerToken)
	expect.OK(t, err)
	bin := filepath.Join(folder, "bin")
	out, err := exec.CommandContext(w.ctx, "go", "build", "-o", bin+"/", "helm.sh/helm/v3/cmd/helm").CombinedOutput()
	expect.OK(t, err, string(out))
	w.env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "HOME="+folder, "PATH="+bin+":"+os.Getenv("PATH"))
	return w
}

// run runs the commands below a heading, in a shell in the source's folder.
func (w *world) run(heading string) string {
	w.Helper()
	cmd := exec.CommandContext(w.ctx, "sh", "-euxc", w.commands[heading])
	cmd.Dir, cmd.Env = root, w.env
	out, err := cmd.CombinedOutput()
	expect.OK(w.T, err, heading, string(out))
	return string(out)
}

// plugin returns the DaemonSet.
func (w *world) plugin() *apps.DaemonSet {
	w.Helper()
	d, err := w.cluster.Client.AppsV1().DaemonSets(chart.Namespace).Get(w.ctx, chart.ServiceAccount, metav1.GetOptions{})
	expect.OK(w.T, err)
	return d
}

// made returns what the release has in the cluster, as "Kind name".
func (w *world) made() (out []string) {
	w.Helper()
	known, err := discovery.NewDiscoveryClientForConfig(w.cluster.Config)
	expect.OK(w.T, err)
	lists, err := known.ServerPreferredResources()
	expect.OK(w.T, err)
	client, err := dynamic.NewForConfig(w.cluster.Config)
	expect.OK(w.T, err)
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		expect.OK(w.T, err)
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "list") {
				continue
			}
			objects, err := client.Resource(version.WithResource(r.Name)).List(w.ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + chart.Release})
			expect.OK(w.T, err, r.Name)
			for _, o := range objects.Items {
				if o.GetKind() != "ControllerRevision" { // the DaemonSet's own
					out = append(out, o.GetKind()+" "+o.GetName())
				}
			}
		}
	}
	slices.Sort(out)
	return out
}

// Install, upgrade, roll back and uninstall, as the page says.
func TestPage(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes the parts of Kubernetes (make e2e-sched)")
	}
	w := newWorld(t)
	notes := w.run("Install")
	expect.True(t, strings.Contains(notes, "rollout status daemonset/"+chart.ServiceAccount), notes)
	installed, first := w.made(), w.plugin()
	objects, err := chart.Render(filepath.Join(root, "kube/chart"), nil)
	expect.OK(t, err)
	var want []string
	for _, o := range objects {
		want = append(want, o.GetKind()+" "+o.GetName())
	}
	slices.Sort(want)
	expect.Equal(t, fmt.Sprint(installed), fmt.Sprint(want))
	args := func(d *apps.DaemonSet) []string { return d.Spec.Template.Spec.Containers[0].Args }
	image := first.Spec.Template.Spec.Containers[0].Image
	expect.True(t, strings.HasPrefix(image, "registry.example/ration-kubelet-plugin:"), image)

	w.run("Upgrade")
	second := w.plugin()
	expect.True(t, slices.Contains(args(second), "--max-memory=40Gi") && second.Spec.Template.Spec.Containers[0].Image == image, args(second))

	history := w.run("Roll back")
	expect.True(t, strings.Contains(history, "Upgrade complete"), history)
	expect.Equal(t, strings.Join(args(w.plugin()), " "), strings.Join(args(first), " "))
	expect.Equal(t, fmt.Sprint(w.made()), fmt.Sprint(installed))

	w.run("Uninstall")
	expect.Equal(t, fmt.Sprint(w.made()), "[]")
}
