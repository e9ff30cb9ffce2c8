// Package cluster starts the control plane of Kubernetes on the loopback interface: etcd, kube-apiserver,
// kube-scheduler and kube-controller-manager, with free ports, and keys and tokens of its own in one
// folder. All of them end with the program that started them, however it ends.
package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"ration/check/harness"
)

// startWithin bounds the start of a component; a busy machine takes long.
const startWithin = 5 * time.Minute

// Users that have tokens, besides one for each node.
const (
	admin             = "admin"
	scheduler         = "system:kube-scheduler"
	controllerManager = "system:kube-controller-manager"
)

// The components, by the names of their programs.
const (
	etcd                  = "etcd"
	APIServer             = "kube-apiserver"
	Scheduler             = "kube-scheduler"
	ControllerManager     = "kube-controller-manager"
	schedulerConfigText   = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nleaderElection: {leaderElect: false}\nclientConnection: {kubeconfig: %q, qps: %d, burst: %d}\npercentageOfNodesToScore: %d\n"
	requestsAtOnce        = 400 // of the API server: its default
	defaultRequestsPerSec = 200
)

// ServiceAddress is where pods look for the API server, on port 443. Nothing here leads there by itself: Forward does.
const ServiceAddress = "10.0.0.1"

// Components lists the parts of a Cluster in the order in which they start.
var Components = []string{etcd, APIServer, Scheduler, ControllerManager}

// Options are the settings of a cluster.
type Options struct {
	Nodes             []string // nodes whose kubelets get a kubeconfig
	RequestsPerSecond int      // limit of the scheduler and the controllers; 0 means defaultRequestsPerSec
	ScorePercent      int      // percentage of fitting nodes that the scheduler compares; 0 means its default
	Heartbeats        bool     // nodes send heartbeats, and count as lost without them
}

// Cluster is a control plane.
type Cluster struct {
	Config *rest.Config // as an administrator
	Client *kubernetes.Clientset

	folder  string
	options Options
	keys    *keys
	etcd    string // address
	port    int    // of the API server
	running map[string]*harness.Process
}

// Start starts a control plane whose files are in a folder. Stop ends it.
func Start(ctx context.Context, folder string, o Options) (*Cluster, error) {
	if o.RequestsPerSecond == 0 {
		o.RequestsPerSecond = defaultRequestsPerSec
	}
	for _, name := range Components {
		if _, err := Program(name); err != nil {
			return nil, err
		}
	}
	c := &Cluster{folder: folder, options: o, running: map[string]*harness.Process{}}
	if err := c.start(ctx); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) (err error) {
	tokens := map[string]string{}
	for _, user := range append([]string{admin, scheduler, controllerManager}, nodeUsers(c.options.Nodes)...) {
		tokens[user] = rand.Text()
	}
	if c.keys, err = makeKeys(c.folder, tokens); err != nil {
		return err
	}
	if err := c.startEtcd(ctx); err != nil {
		return err
	}
	if err := c.startAPIServer(ctx); err != nil {
		return err
	}
	if err := c.StartScheduler(ctx); err != nil {
		return err
	}
	return c.StartControllerManager(ctx)
}

func (c *Cluster) startEtcd(ctx context.Context) error {
	return retryPorts(func() error {
		ports, err := freePorts(2)
		if err != nil {
			return err
		}
		c.etcd = address(ports[0])
		peer := "http://" + address(ports[1])
		args := []string{"--data-dir", filepath.Join(c.folder, "etcd"), "--listen-client-urls", "http://" + c.etcd, "--advertise-client-urls", "http://" + c.etcd,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default=" + peer, "--log-level", "warn",
			"--quota-backend-bytes", strconv.Itoa(8 << 30), "--unsafe-no-fsync"}
		return c.run(ctx, etcd, args, "http://"+c.etcd+"/health")
	})
}

func (c *Cluster) startAPIServer(ctx context.Context) error {
	err := retryPorts(func() error {
		ports, err := freePorts(1)
		if err != nil {
			return err
		}
		c.port = ports[0]
		k := c.keys
		return c.run(ctx, APIServer, []string{"--etcd-servers=http://" + c.etcd, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
			"--secure-port=" + strconv.Itoa(c.port), "--tls-cert-file=" + k.cert, "--tls-private-key-file=" + k.key, "--token-auth-file=" + k.tokens,
			"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
			"--service-account-key-file=" + k.serviceAccounts, "--service-account-signing-key-file=" + k.serviceAccounts,
			"--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.0.0.0/24", "--endpoint-reconciler-type=none",
			"--max-requests-inflight=" + strconv.Itoa(2*requestsAtOnce), "--max-mutating-requests-inflight=" + strconv.Itoa(requestsAtOnce),
		}, c.url()+"/readyz")
	})
	if err != nil {
		return err
	}
	c.Config = &rest.Config{Host: c.url(), BearerToken: c.keys.users[admin], TLSClientConfig: rest.TLSClientConfig{CAFile: c.keys.cert},
		QPS: -1} // the test's own clients are not throttled
	c.Client, err = kubernetes.NewForConfig(c.Config)
	return err
}

// StartScheduler starts the scheduler, with arguments in addition to the cluster's options.
func (c *Cluster) StartScheduler(ctx context.Context, args ...string) error {
	kubeconfig, err := c.kubeconfig(scheduler)
	if err != nil {
		return err
	}
	config := filepath.Join(c.folder, "scheduler.yaml")
	text := fmt.Sprintf(schedulerConfigText, kubeconfig, c.options.RequestsPerSecond, c.options.RequestsPerSecond, c.options.ScorePercent)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	return retryPorts(func() error {
		ports, err := freePorts(1)
		if err != nil {
			return err
		}
		return c.run(ctx, Scheduler, append([]string{"--config=" + config, "--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(ports[0]),
			"--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
			"--tls-cert-file=" + c.keys.cert, "--tls-private-key-file=" + c.keys.key}, args...), "https://"+address(ports[0])+"/readyz")
	})
}

// withoutNodeLifecycle prevents that nodes without heartbeats count as lost.
const withoutNodeLifecycle = "--controllers=*,-node-lifecycle-controller"

// StartControllerManager starts the controllers, with arguments in addition to the cluster's
// options. With any argument, nodes must send heartbeats.
func (c *Cluster) StartControllerManager(ctx context.Context, args ...string) error {
	kubeconfig, err := c.kubeconfig(controllerManager)
	if err != nil {
		return err
	}
	if len(args) == 0 && !c.options.Heartbeats {
		args = []string{withoutNodeLifecycle}
	}
	rate := strconv.Itoa(c.options.RequestsPerSecond)
	return retryPorts(func() error {
		ports, err := freePorts(1)
		if err != nil {
			return err
		}
		return c.run(ctx, ControllerManager, append([]string{"--kubeconfig=" + kubeconfig, "--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(ports[0]),
			"--leader-elect=false", "--service-account-private-key-file=" + c.keys.serviceAccounts, "--use-service-account-credentials=true",
			"--kube-api-qps=" + rate, "--kube-api-burst=" + rate, "--root-ca-file=" + c.keys.cert,
			"--tls-cert-file=" + c.keys.cert, "--tls-private-key-file=" + c.keys.key}, args...), "https://"+address(ports[0])+"/healthz")
	})
}

// run starts a component, and waits until it is ready. Its output goes to a file in the cluster's
// folder.
func (c *Cluster) run(ctx context.Context, name string, args []string, ready string) error {
	c.StopComponent(name)
	program, err := Program(name)
	if err != nil {
		return err
	}
	log := filepath.Join(c.folder, name+".log")
	p, err := harness.Start(harness.Spec{Name: name, Cmd: exec.Command("sh", append([]string{"-c", `log=$1; shift; exec "$@" >>"$log" 2>&1`, "sh", log, program}, args...)...)})
	if err != nil {
		return err
	}
	c.running[name] = p
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- p.Wait(startWithin) }()
	client := c.keys.client(c.keys.users[admin])
	for {
		err := get(ctx, client, ready)
		if err == nil {
			return nil
		}
		select {
		case end := <-ended:
			return fmt.Errorf("starting %s: it ended: %v: %s", name, end, tail(log))
		case <-ctx.Done():
			return fmt.Errorf("starting %s: %w: %s", name, err, tail(log))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// StopComponent ends a component at once, as a crash would.
func (c *Cluster) StopComponent(name string) {
	if p := c.running[name]; p != nil {
		p.Close()
		delete(c.running, name)
	}
}

// Stop ends all components. Nothing of the cluster is worth keeping.
func (c *Cluster) Stop() {
	for _, name := range slices.Backward(Components) {
		c.StopComponent(name)
	}
}

// Usage returns the highest memory use of a component so far, in bytes, and the processor time that it has
// used.
func (c *Cluster) Usage(name string) (peak int64, cpu time.Duration, err error) {
	p := c.running[name]
	if p == nil {
		return 0, 0, fmt.Errorf("%s is not running", name)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		return 0, 0, err
	}
	_, text, _ := strings.Cut(string(status), "VmHWM:")
	if _, err := fmt.Sscan(text, &peak); err != nil {
		return 0, 0, fmt.Errorf("reading the memory of %s: %w", name, err)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		return 0, 0, err
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return peak << 10, time.Duration(user+system) * 10 * time.Millisecond, nil // the kernel's tick for users is a hundredth
}

func (c *Cluster) url() string { return "https://" + address(c.port) }

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// errPorts is how a component reports that a port was taken between freePorts and its start.
const errPorts = "address already in use"

// retryPorts calls start, and calls it again if a free port was taken before the component could
// use it.
func retryPorts(start func() error) (err error) {
	for range 5 {
		if err = start(); err == nil || !strings.Contains(err.Error(), errPorts) {
			return err
		}
	}
	return err
}

// freePorts returns ports that nothing listens on.
func freePorts(n int) (ports []int, err error) {
	for range n {
		l, listenErr := net.Listen("tcp", "127.0.0.1:0")
		if listenErr != nil {
			return nil, errors.Join(err, listenErr)
		}
		defer l.Close() // closed together, so that no port is returned twice
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, err
}
