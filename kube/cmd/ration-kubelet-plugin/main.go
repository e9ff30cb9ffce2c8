// Command ration-kubelet-plugin is ration's DRA driver for a Kubernetes node.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"ration/internal/gpu"
	"ration/internal/limit"
	"ration/kube/node"
	"ration/kube/nvidia"
	"ration/kube/plugin"
	"ration/kube/slices"
)

func main() {
	if err := new(flags).command().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "ration-kubelet-plugin:", err)
		os.Exit(1)
	}
}

// flags are the command-line flags.
type flags struct {
	config                          plugin.Config
	kubeconfig, state, cdi, fakeGPU string
	driver                          nvidia.Driver
	defaultMemory, maxMemory        string
	maxNamespaceMemory              string
	maxPriority                     string
	taintUnhealthy, taintOutside    string
	ready                           string
	qps                             float32
	burst                           int
}

func (f *flags) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ration-kubelet-plugin",
		Short: "Give pods their rations of GPUs",
		Long: `Publish this node's GPUs to Kubernetes as devices whose memory and time are handed
out in parts, and put the containers of pods with such a claim into their ration.
It runs as root on each node with GPUs; the Helm chart starts it.`,
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			return f.run(ctx)
		},
	}
	cmd.SetContext(context.Background())
	flags := cmd.Flags()
	flags.StringVar(&f.config.NodeName, "node-name", os.Getenv("NODE_NAME"), "`name` of this node")
	flags.StringVar(&f.config.PodUID, "pod-uid", os.Getenv("POD_UID"), "UID of the plugin's own pod, which lets the next one start before this one ends")
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "`file` that says where the API server is; without it, the pod's own account")
	flags.StringVar(&f.config.KubeletRoot, "kubelet-root", "/var/lib/kubelet", "the kubelet's root `folder`")
	flags.StringVar(&f.state, "state-dir", "", "`folder` of records of prepared claims (default KUBELET-ROOT/plugins/"+slices.Driver+"/claims)")
	flags.StringVar(&f.cdi, "cdi-dir", "/var/run/cdi", "`folder` in which the container engine looks for CDI specs")
	flags.StringVar(&f.driver.Root, "driver-root", "/", "root `folder` of the driver's files and of /dev, as seen here")
	flags.StringVar(&f.driver.HostRoot, "host-driver-root", "/", "the same `folder`, as the container engine sees it")
	flags.StringVar(&f.driver.Hook, "nvidia-cdi-hook", "/usr/bin/nvidia-cdi-hook", "NVIDIA's `program` for containers, as the container engine sees it")
	flags.StringVar(&f.defaultMemory, "default-memory", "", "memory of a request that does not say how much, like 8Gi (default all of the device)")
	flags.StringVar(&f.maxMemory, "max-memory", "", "most memory of a claim, all its devices together, like 40Gi (default no bound)")
	flags.IntVar(&f.config.MaxCompute, "max-compute", 100, "most `per cent` of compute of a claim, all its devices together; 100: no bound")
	flags.StringVar(&f.maxNamespaceMemory, "max-namespace-memory", "", "most memory of the claims of a namespace, on all nodes together, like 160Gi (default no bound)")
	flags.StringVar(&f.config.Namespace, "namespace", os.Getenv("NAMESPACE"), "`namespace` of the plugin's own pod, in which --max-namespace-memory has its ConfigMaps")
	flags.StringVar(&f.maxPriority, "max-priority", "normal", "highest `priority` that a claim may ask for: high, normal or low; its device class may give any")
	flags.BoolVar(&f.config.Pods, "read-pods", false, "ask the API server for pods, to know which container uses a claim")
	flags.DurationVar(&f.config.EventsPeriod, "events", 10*time.Second, "how often refused requests are looked for, which become events of the pod; 0: no events at all")
	flags.StringVar(&f.ready, "ready-address", "", "`address` of the readiness probe, like :8086; it answers 200 on /readyz when the kubelet has registered the plugin, and the API server has the GPUs as it publishes them and lets it write them; /metrics has the plugin's own metrics")
	flags.StringVar(&f.taintUnhealthy, "taint-unhealthy", string(resourceapi.DeviceTaintEffectNoSchedule), "`effect` of the taint of a GPU that does not work: NoSchedule, NoExecute or none")
	flags.StringVar(&f.taintOutside, "taint-outside", noTaint, "`effect` of the taint of a GPU that a process of a pod uses without the library: NoSchedule, NoExecute or none")
	flags.Float32Var(&f.qps, "api-qps", 50, "requests to the API server in a second; a pod takes two")
	flags.IntVar(&f.burst, "api-burst", 100, "requests to the API server at once")
	flags.StringVar(&f.fakeGPU, "fake-gpu", "", "a stand-in `machine`, like h200x2, for tests without a GPU")
	return cmd
}

func (f *flags) run(ctx context.Context) error {
	if err := f.complete(); err != nil {
		return err
	}
	p, running, err := plugin.Start(ctx, f.config)
	if err != nil {
		return err
	}
	if f.ready != "" {
		listener, err := net.Listen("tcp", f.ready)
		if err != nil {
			p.Stop()
			return fmt.Errorf("listening for readiness probes: %w (choose another --ready-address)", err)
		}
		defer listener.Close()
		mux := http.NewServeMux()
		mux.Handle("/readyz", p)
		mux.Handle("/metrics", p.Metrics())
		server := &http.Server{Handler: mux, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second}
		go func() { _ = server.Serve(listener) }()
	}
	klog.Background().Info("Running", "node", f.config.NodeName, "gpus", len(f.config.Node.GPUs))
	<-running.Done()
	p.Stop()
	if err := context.Cause(running); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// complete checks the flags, and finds the GPUs.
func (f *flags) complete() error {
	if os.Geteuid() != 0 {
		return errors.New("this has to run as root: the jobs of claims are root's, so that no tenant can change their limits")
	}
	if f.config.NodeName == "" {
		return errors.New("which node is this? (--node-name, or NODE_NAME from the downward API)")
	}
	var err error
	if f.config.Options.DefaultMemory, err = size("--default-memory", f.defaultMemory); err != nil {
		return err
	}
	if f.config.MaxMemory, err = size("--max-memory", f.maxMemory); err != nil {
		return err
	}
	if f.config.MaxNamespaceMemory, err = size("--max-namespace-memory", f.maxNamespaceMemory); err != nil {
		return err
	}
	if f.config.MaxNamespaceMemory > 0 && f.config.Namespace == "" {
		return errors.New("in which namespace does --max-namespace-memory keep its ConfigMaps? (--namespace, or NAMESPACE from the downward API)")
	}
	if f.config.MaxPriority, err = limit.ParsePriority("--max-priority", f.maxPriority); err != nil {
		return err
	}
	if f.config.TaintUnhealthy, err = effect("--taint-unhealthy", f.taintUnhealthy); err != nil {
		return err
	}
	if f.config.TaintOutside, err = effect("--taint-outside", f.taintOutside); err != nil {
		return err
	}
	n := &node.Node{FakeGPU: f.fakeGPU, State: f.state, CDI: f.cdi}
	if n.State == "" {
		n.State = filepath.Join(f.config.KubeletRoot, "plugins", slices.Driver, "claims")
	}
	all, err := f.gpus(n)
	if err != nil {
		return err
	}
	gpus, left := slices.Publishable(all)
	for _, why := range left {
		klog.Background().Info("Not published: " + why)
	}
	if n.GPUs = gpus; len(gpus) == 0 {
		return fmt.Errorf("there is no GPU to hand out here: %s", strings.Join(left, "; "))
	}
	// A plugin that ends here is not registered: one that runs keeps the node, and no pod starts
	// without its limits.
	if err := node.SelfTest(); err != nil {
		return err
	}
	f.config.Node = n
	return f.connect()
}

// size parses the value of a flag; an empty one is 0.
func size(flag, value string) (uint64, error) {
	if value == "" {
		return 0, nil
	}
	q, err := resource.ParseQuantity(value)
	if err != nil || q.Value() <= 0 {
		return 0, fmt.Errorf("%s %q is not a size (use 8Gi)", flag, value)
	}
	return uint64(q.Value()), nil
}

// noTaint is the value of a flag for no taint.
const noTaint = "none"

// effect parses the effect of a taint.
func effect(flag, value string) (resourceapi.DeviceTaintEffect, error) {
	switch e := resourceapi.DeviceTaintEffect(value); e {
	case noTaint:
		return "", nil
	case resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNoExecute:
		return e, nil
	}
	return "", fmt.Errorf("%s %q is not an effect (use NoSchedule, NoExecute or none)", flag, value)
}

// gpus returns the machine's GPUs, and tells the node how to find them.
func (f *flags) gpus(n *node.Node) ([]slices.GPU, error) {
	if f.fakeGPU != "" {
		return node.FakeGPUs(f.fakeGPU)
	}
	if err := f.driver.Check(); err != nil {
		return nil, err
	}
	gpus, driver, err := f.find()
	if err != nil {
		return nil, err
	}
	n.Driver = driver
	f.config.Find = func() ([]slices.GPU, *gpu.Driver, error) {
		all, driver, err := f.find()
		gpus, _ := slices.Publishable(all)
		return gpus, driver, err
	}
	n.Hardware, f.config.Sick, f.config.Faults, f.config.Users = f.driver.Edits, f.driver.Sick, f.driver.Faults, f.driver.Users
	return gpus, nil
}

// find returns the GPUs that the machine has now, and the same for the limits of jobs.
func (f *flags) find() ([]slices.GPU, *gpu.Driver, error) {
	driver, err := f.driver.Devices()
	if err != nil {
		return nil, nil, err
	}
	gpus := node.GPUs(driver)
	if err := f.driver.Locate(gpus); err != nil {
		klog.Background().Error(err, "Published without their places in the machine")
	}
	return gpus, driver, nil
}

func (f *flags) connect() error {
	config, err := rest.InClusterConfig()
	if f.kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", f.kubeconfig)
	}
	if err != nil {
		return fmt.Errorf("finding the API server: %w (outside a pod, use --kubeconfig)", err)
	}
	config.QPS, config.Burst = f.qps, f.burst
	if f.config.Client, err = kubernetes.NewForConfig(config); err != nil {
		return fmt.Errorf("finding the API server: %w", err)
	}
	return nil
}
