// Package binaries builds the parts of Kubernetes that the tests start, from the Go module proxy, and
// keeps them in a cache. Each folder below it that has a go.mod is a module that pins what is built,
// and whose dependencies reach no other.
package binaries

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CacheVariable names the folder that the programs are kept in, if not the user's cache.
const CacheVariable = "KUBE_E2E_CACHE"

// ErrNotBuilt is returned for a program that is not in the cache.
var ErrNotBuilt = errors.New("not built yet")

// version is the release of Kubernetes in kubernetes/go.mod, which a test compares. Its programs do
// not know it: it is set when they are linked, and clients decide by it.
const version = "v1.36.3"

// program is something to build.
type program struct {
	name    string
	module  string // folder of the module that pins it
	pkg     string
	tags    string // with any, it has C in it
	seconds int    // what it took on two idle cores, after those before it and with nothing in Go's cache
}

var programs = []program{
	{"etcd", "kubernetes", "ration/check/kube/binaries/kubernetes/etcd", "", 40},
	{"kube-apiserver", "kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver", "", 315},
	{"kube-scheduler", "kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler", "", 29},
	{"kube-controller-manager", "kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager", "", 58},
	{"kubelet", "kubernetes", "k8s.io/kubernetes/cmd/kubelet", "", 25},
	{"containerd", "containerd", "github.com/containerd/containerd/v2/cmd/containerd", "", 98},
	{"containerd-shim-runc-v2", "containerd", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2", "", 5},
	{"ctr", "containerd", "github.com/containerd/containerd/v2/cmd/ctr", "", 5},
	{"runc", "runc", "github.com/opencontainers/runc", "seccomp", 20},
}

// ControlPlane are the programs of a cluster without nodes, and Node those of a node.
var (
	ControlPlane = []string{"etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager"}
	Node         = []string{"kubelet", "containerd", "containerd-shim-runc-v2", "ctr", "runc"}
)

// Path returns the path of a program in the cache.
func Path(name string) (string, error) {
	p, err := find(name)
	if err != nil {
		return "", err
	}
	path, err := p.path()
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s: %w (go run ./cmd/e2e-build in check/kube builds it; make e2e-sched does that)", name, ErrNotBuilt)
	}
	return path, nil
}

// Missing returns the programs of a list that are not in the cache, and about how long it takes to
// build them on two idle cores.
func Missing(names []string) (missing []string, takes time.Duration, err error) {
	for _, name := range names {
		switch _, err := Path(name); {
		case errors.Is(err, ErrNotBuilt):
			p, _ := find(name)
			missing, takes = append(missing, name), takes+time.Duration(p.seconds)*time.Second
		case err != nil:
			return nil, 0, err
		}
	}
	return missing, takes, nil
}

// Build builds the programs of a list that are not in the cache, and reports progress. Of two that
// build at once the second waits.
func Build(ctx context.Context, out io.Writer, names []string) error {
	for _, name := range names {
		p, err := find(name)
		if err != nil {
			return err
		}
		if err := p.build(ctx, out); err != nil {
			return fmt.Errorf("building %s: %w", name, err)
		}
	}
	return nil
}

func find(name string) (program, error) {
	for _, p := range programs {
		if p.name == name {
			return p, nil
		}
	}
	return program{}, fmt.Errorf("%s: not a program that is known here", name)
}

// folder returns the folder of the module that pins the program.
func (p program) folder() (string, error) {
	at, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; at = filepath.Dir(at) {
		folder := filepath.Join(at, "binaries", p.module)
		if _, err := os.Stat(filepath.Join(folder, "go.mod")); err == nil {
			return folder, nil
		}
		if at == filepath.Dir(at) {
			return "", errors.New("finding check/kube/binaries: not at or above the working directory")
		}
	}
}

// path returns where the program is in the cache. The name says what it was made of, so that nothing
// stale is ever found.
func (p program) path() (string, error) {
	folder, err := p.folder()
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			return "", err
		}
		sum.Write(text)
	}
	fmt.Fprintln(sum, p.linkerFlags()+p.tags)
	cache := os.Getenv(CacheVariable)
	if cache == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("finding a folder for what is built: %w (set %s)", err, CacheVariable)
		}
		cache = filepath.Join(user, "ration-e2e")
	}
	return filepath.Join(cache, fmt.Sprintf("%s-%x", p.module, sum.Sum(nil)[:6]), p.name), nil
}

func (p program) linkerFlags() string {
	flags := "-s -w"
	if p.module == "kubernetes" {
		numbers := strings.Split(strings.TrimPrefix(version, "v"), ".")
		flags += " -X k8s.io/client-go/pkg/version.gitVersion=" + version
		flags += " -X k8s.io/component-base/version.gitVersion=" + version
		flags += " -X k8s.io/component-base/version.gitMajor=" + numbers[0]
		flags += " -X k8s.io/component-base/version.gitMinor=" + numbers[1]
	}
	return flags
}

func (p program) build(ctx context.Context, out io.Writer) error {
	path, err := p.path()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	unlock, err := lock(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	folder, err := p.folder()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: building (about %d s on two idle cores, if nothing of it is in Go's cache)\n", p.name, p.seconds)
	begin := time.Now()
	made := path + ".new"
	cmd := exec.CommandContext(ctx, "go", "build", "-v", "-trimpath", "-tags", p.tags, "-ldflags", p.linkerFlags(), "-o", made, p.pkg)
	cmd.Dir = folder
	cgo := "0"
	if p.tags != "" {
		cgo = "1"
	}
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo)
	shown := &progress{name: p.name, out: out, last: begin}
	cmd.Stderr = shown
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w: %s (is the module proxy within reach? runc also needs gcc and libseccomp-dev)", err, shown.tail)
	}
	if err := os.Rename(made, path); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: built in %.0f s\n", p.name, time.Since(begin).Seconds())
	return nil
}

// lock waits until no other process builds into a folder.
func lock(folder string) (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(folder, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("locking %s: %w", folder, err)
	}
	return func() { _ = file.Close() }, nil
}
