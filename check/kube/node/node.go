package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"ration/check/harness"
	"ration/check/kube/cluster"
	"ration/deploy/oci"
)

// Name is the node's name and Address the address of its kubelet.
const (
	Name    = "node0"
	Address = "10.99.0.1"
)

// Image has busybox and glibc, for programs that a claim's driver files bring, and is what a pod's first container
// is made of, too.
const Image = "localhost/ration-e2e:1"

// Programs are the parts of Kubernetes that run on the node.
var Programs = []string{"containerd", "containerd-shim-runc-v2", "runc", "ctr", "kubelet"}

// startWithin bounds the start of a program, and readyWithin how long the kubelet may report that the node is not
// ready.
const (
	startWithin = 3 * time.Minute
	readyWithin = 10 * time.Second
)

var (
	containerdFolder = filepath.Join(Folder, "containerd")
	containerdSocket = filepath.Join(containerdFolder, "containerd.sock")
	kubeletFolder    = filepath.Join(Folder, "kubelet")
	cdiFolder        = filepath.Join(Folder, "cdi")
	cniFolder        = filepath.Join(Folder, "cni")
)

const containerdText = `version = 3
root = '%[1]s/root'
state = '%[1]s/state'
disabled_plugins = ['io.containerd.nri.v1.nri']
[grpc]
  address = '%[2]s'
[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = '%[3]s'
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  disable_apparmor = true
  enable_unprivileged_ports = false
  enable_unprivileged_icmp = false
  enable_cdi = true
  cdi_spec_dirs = ['%[4]s']
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['%[7]s']
    conf_dir = '%[7]s'
    use_internal_loopback = true
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
    runtime_path = '%[5]s'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = '%[6]s'
      Root = '%[1]s/runc'
      SystemdCgroup = false
`

const kubeletText = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: %[1]s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
readOnlyPort: 0
containerRuntimeEndpoint: unix://%[2]s
cgroupDriver: cgroupfs
cgroupRoot: /%[3]s
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
registerNode: true
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
enforceNodeAllocatable: [pods]
localStorageCapacityIsolation: false
evictionHard: {memory.available: 50Mi}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
`

// Node is a node of a cluster.
type Node struct {
	kubeconfig string
	running    map[string]*harness.Process
}

// Start starts containerd and the kubelet of a node, whose kubeconfig this is.
func Start(ctx context.Context, kubeconfig string) (*Node, error) {
	n := &Node{kubeconfig: kubeconfig, running: map[string]*harness.Process{}}
	if err := n.startContainerd(ctx); err != nil {
		n.Stop()
		return nil, err
	}
	if err := n.StartKubelet(ctx); err != nil {
		n.Stop()
		return nil, err
	}
	return n, nil
}

func (n *Node) startContainerd(ctx context.Context) error {
	var paths []string
	for _, name := range Programs[:3] {
		path, err := cluster.Program(name)
		if err != nil {
			return err
		}
		paths = append(paths, path)
	}
	if err := errors.Join(os.MkdirAll(containerdFolder, 0o755), writeNetwork()); err != nil {
		return err
	}
	config := filepath.Join(Folder, "containerd.toml")
	if err := os.WriteFile(config, fmt.Appendf(nil, containerdText, containerdFolder, containerdSocket, Image, cdiFolder, paths[1], paths[2], cniFolder), 0o644); err != nil {
		return err
	}
	if err := n.run("containerd", paths[0], "-c", config); err != nil {
		return err
	}
	tar := filepath.Join(Folder, "image.tar")
	image := oci.Archive{Name: Image, Images: []oci.Image{{Architecture: runtime.GOARCH, Files: files(), Entrypoint: []string{"/bin/busybox", "sleep", "1000000"}}}}
	if _, err := image.Write(tar); err != nil {
		return err
	}
	return n.await(ctx, "containerd", func() error { return Import(ctx, tar) })
}

// Import gives containerd an image, from an archive.
func Import(ctx context.Context, tar string) error {
	ctr, err := cluster.Program("ctr")
	if err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, ctr, "-a", containerdSocket, "-n", "k8s.io", "images", "import", tar).CombinedOutput()
	if err != nil {
		return fmt.Errorf("importing %s: %w: %s", tar, err, out)
	}
	return nil
}

// files returns those of the image: busybox, and what a program needs that is linked with glibc.
func files() []oci.File {
	files := []oci.File{{From: "/bin/busybox", To: "/bin/busybox"}}
	for _, name := range []string{"sh", "env", "sleep", "cat", "ls", "kill", "id", "mv", "rm", "test", "echo", "true", "touch", "mount", "umount", "grep"} {
		files = append(files, oci.File{Link: "busybox", To: "/bin/" + name})
	}
	for _, pattern := range []string{"/lib64/ld-linux-*", "/lib/ld-linux-*", "/lib/*-linux-gnu/libc.so.6", "/lib/*-linux-gnu/libm.so.6", "/lib/*-linux-gnu/libdl.so.2",
		"/lib/*-linux-gnu/libpthread.so.0", "/lib/*-linux-gnu/librt.so.1"} {
		found, _ := filepath.Glob(pattern)
		for _, path := range found {
			files = append(files, oci.File{From: path, To: path})
		}
	}
	return files
}

// StartKubelet starts the kubelet, and waits until it answers.
func (n *Node) StartKubelet(ctx context.Context) error {
	path, err := cluster.Program("kubelet")
	if err != nil {
		return err
	}
	config := filepath.Join(Folder, "kubelet.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, kubeletText, Address, containerdSocket, os.Getenv(insideVariable)), 0o644); err != nil {
		return err
	}
	if err := n.run("kubelet", path, "--config="+config, "--kubeconfig="+n.kubeconfig, "--root-dir="+kubeletFolder, "--cert-dir="+kubeletFolder+"/pki",
		"--hostname-override="+Name, "--node-ip="+Address, "-v=2"); err != nil {
		return err
	}
	return n.await(ctx, "kubelet", func() error {
		out, err := exec.CommandContext(ctx, "busybox", "wget", "-q", "-O-", "http://127.0.0.1:10248/healthz").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// AwaitReady waits until the kubelet reports that pods can run on the node. If the kubelet reports for readyWithin
// that something is missing, AwaitReady returns that as an error.
func AwaitReady(ctx context.Context, client kubernetes.Interface) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	for since := time.Now(); ; {
		why := "the kubelet has not registered it"
		now, err := client.CoreV1().Nodes().Get(ctx, Name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("waiting for the node: %w", err)
		}
		reported := false
		for _, c := range now.Status.Conditions {
			if c.Type != corev1.NodeReady {
				continue
			}
			if c.Status == corev1.ConditionTrue {
				return nil
			}
			reported, why = true, c.Message
		}
		if !reported {
			since = time.Now()
		}
		if time.Since(since) > readyWithin || ctx.Err() != nil {
			return fmt.Errorf("the node does not become ready: %s", why)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// Kill ends a program at once, as a crash would.
func (n *Node) Kill(name string) {
	if p := n.running[name]; p != nil {
		p.Close()
		delete(n.running, name)
	}
}

// Stop ends all programs. What the containers run ends with the namespaces.
func (n *Node) Stop() {
	for _, name := range []string{pluginName, "kubelet", "containerd"} {
		n.Kill(name)
	}
}

// Log returns the end of what a program wrote.
func (n *Node) Log(name string) string {
	text, err := os.ReadFile(logFile(name))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4000):])
}

// LogsVariable names a folder that keeps what the node's programs write. Without it, it goes with the node.
const LogsVariable = "RATION_E2E_LOGS"

func logFile(name string) string {
	return filepath.Join(cmp.Or(os.Getenv(LogsVariable), Folder), name+".log")
}

func (n *Node) run(name, path string, args ...string) error {
	n.Kill(name)
	// The shim is looked for beside containerd, and runc by the shim in PATH.
	p, err := harness.Start(harness.Spec{Name: name, Cmd: exec.Command("sh", append([]string{"-c", `log=$1; shift; exec "$@" >>"$log" 2>&1`, "sh", logFile(name), path}, args...)...)})
	if err != nil {
		return err
	}
	n.running[name] = p
	return nil
}

// await calls a check until it succeeds, or the program has ended.
func (n *Node) await(ctx context.Context, name string, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- n.running[name].Wait(startWithin) }()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case end := <-ended:
			return fmt.Errorf("starting %s: it ended: %v: %s", name, end, n.Log(name))
		case <-ctx.Done():
			return fmt.Errorf("starting %s: %w: %s", name, err, n.Log(name))
		case <-time.After(50 * time.Millisecond):
		}
	}
}
