package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"ration/kube/slices"
)

const pluginName = "ration-kubelet-plugin"

// PluginVariable names the plugin's program, and ImageVariable the archive of its image.
const (
	PluginVariable = "RATION_E2E_PLUGIN"
	ImageVariable  = "RATION_E2E_IMAGE"
)

// FakeGPU is the stand-in machine of the node. A container sees those of its devices that its claim has.
const FakeGPU = "h100x2"

// StartPlugin starts ration's kubelet plugin, with a kubeconfig, and waits until it listens.
func (n *Node) StartPlugin(ctx context.Context, kubeconfig string) error {
	socket := filepath.Join(kubeletFolder, "plugins", slices.Driver, "dra.sock")
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := n.run(pluginName, os.Getenv(PluginVariable), "--kubeconfig="+kubeconfig, "--node-name="+Name, "--kubelet-root="+kubeletFolder, "--cdi-dir="+cdiFolder,
		"--fake-gpu="+FakeGPU, "--events=1s"); err != nil {
		return err
	}
	return n.await(ctx, pluginName, func() error {
		_, err := os.Stat(socket)
		return err
	})
}

// KillPlugin ends the plugin at once, and KillKubelet the kubelet.
func (n *Node) KillPlugin()  { n.Kill(pluginName) }
func (n *Node) KillKubelet() { n.Kill("kubelet") }

// Claims returns the files that the plugin has for claims: records, CDI specs and jobs.
func Claims() (files []string) {
	for _, pattern := range []string{filepath.Join(kubeletFolder, "plugins", slices.Driver, "claims", "*.json"), filepath.Join(cdiFolder, "*.json"), "/run/ration/k8s-*"} {
		found, _ := filepath.Glob(pattern)
		files = append(files, found...)
	}
	return files
}
