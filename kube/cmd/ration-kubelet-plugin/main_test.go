package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientapi "k8s.io/client-go/tools/clientcmd/api"

	"ration/check/expect"
	"ration/internal/embedded"
	"ration/internal/limit"
	"ration/kube/node"
)

// complete parses the flags of a plugin with a stand-in machine, and completes them.
func complete(t *testing.T, args ...string) (*flags, error) {
	t.Helper()
	for _, b := range []embedded.Bundle{embedded.Ration, embedded.FakeGPU} {
		if err := b.Built(); err != nil {
			t.Skip(err)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("the jobs of claims are root's")
	}
	folder := t.TempDir()
	t.Setenv("RATION_DIR", filepath.Join(folder, "jobs"))
	t.Setenv("FAKEGPU_QUIET", "1")
	for _, name := range []string{"NODE_NAME", "POD_UID", "NAMESPACE"} {
		t.Setenv(name, "")
	}
	kubeconfig := filepath.Join(folder, "kubeconfig")
	config := clientapi.Config{Clusters: map[string]*clientapi.Cluster{"c": {Server: "https://127.0.0.1:1"}},
		Contexts: map[string]*clientapi.Context{"c": {Cluster: "c"}}, CurrentContext: "c"}
	expect.OK(t, clientcmd.WriteToFile(config, kubeconfig))
	f := new(flags)
	expect.OK(t, f.command().ParseFlags(append([]string{"--fake-gpu=h200x2", "--node-name=node0", "--kubeconfig=" + kubeconfig}, args...)))
	return f, f.complete()
}

// What the chart sets reaches the plugin, and its bounds on requests the client.
func TestFlags(t *testing.T) {
	f, err := complete(t, "--kubelet-root=/k", "--cdi-dir=/c", "--events=3s", "--read-pods=true", "--pod-uid=uid", "--namespace=ns",
		"--taint-unhealthy=NoExecute", "--taint-outside=NoSchedule", "--api-qps=7", "--api-burst=9", "--default-memory=8Gi",
		"--max-memory=40Gi", "--max-namespace-memory=160Gi", "--max-compute=60", "--max-priority=high")
	expect.OK(t, err)
	c := f.config
	expect.True(t, c.NodeName == "node0" && c.PodUID == "uid" && c.Namespace == "ns" && c.KubeletRoot == "/k" && c.Pods && c.EventsPeriod == 3*time.Second, c)
	expect.True(t, c.Node.CDI == "/c" && c.Node.State == "/k/plugins/gpu.ration/claims" && len(c.Node.GPUs) == 2, c.Node.CDI, c.Node.State, c.Node.GPUs)
	expect.True(t, c.TaintUnhealthy == resourceapi.DeviceTaintEffectNoExecute && c.TaintOutside == resourceapi.DeviceTaintEffectNoSchedule, c.TaintUnhealthy, c.TaintOutside)
	expect.True(t, c.Options.DefaultMemory == 8<<30 && c.MaxMemory == 40<<30 && c.MaxNamespaceMemory == 160<<30 && c.MaxCompute == 60 && c.MaxPriority == limit.PriorityHigh, c)
	// One of the limiters of the client: nine requests at once, and no tenth.
	limiter := c.Client.CoreV1().RESTClient().GetRateLimiter()
	expect.Equal(t, limiter.QPS(), 7)
	for range 9 {
		expect.True(t, limiter.TryAccept(), "fewer at once than it may")
	}
	expect.True(t, !limiter.TryAccept(), "more at once than it may")
}

// By default nothing is bounded, and only a GPU that does not work has a taint.
func TestDefaults(t *testing.T) {
	f, err := complete(t)
	expect.OK(t, err)
	c := f.config
	expect.True(t, c.MaxMemory == 0 && c.MaxNamespaceMemory == 0 && c.MaxCompute == 100 && c.MaxPriority == limit.PriorityNormal && c.Options.DefaultMemory == 0, c)
	expect.True(t, c.TaintUnhealthy == resourceapi.DeviceTaintEffectNoSchedule && c.TaintOutside == "" && c.EventsPeriod == 10*time.Second, c)
}

func TestFlagsThatAreWrong(t *testing.T) {
	for arg, want := range map[string]string{
		"--node-name=":               "which node",
		"--fake-gpu=none":            "none",
		"--default-memory=0":         "--default-memory",
		"--max-memory=8 GB":          "--max-memory",
		"--max-namespace-memory=-1":  "--max-namespace-memory",
		"--max-namespace-memory=8Gi": "in which namespace",
		"--max-priority=highest":     "--max-priority",
		"--taint-unhealthy=Evict":    "--taint-unhealthy",
		"--taint-outside=":           "--taint-outside",
		"--kubeconfig=/none":         "finding the API server",
	} {
		_, err := complete(t, arg)
		expect.True(t, err != nil && strings.Contains(err.Error(), want), arg, err)
	}
}

// A plugin whose library does not hold a program ends before it looks for the API server: nothing is published.
func TestLibraryIsTested(t *testing.T) {
	own := embedded.Ration
	t.Cleanup(func() { embedded.Ration = own })
	embedded.Ration = embedded.FakeGPU // which has no libration.so
	f, err := complete(t)
	expect.True(t, errors.Is(err, node.ErrLibrary) && f.config.Client == nil, err)
}
