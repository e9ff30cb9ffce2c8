package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/specs-go"

	"ration/internal/embedded"
	"ration/internal/job"
	"ration/internal/safepath"
	"ration/kube/claim"
	"ration/machine"
)

const (
	gib   = 1 << 30
	uid   = "6b0e6a3c-8d53-4a76-9d0e-0123456789ab"
	other = "6b0e6a3c-8d53-4a76-9d0e-0123456789ac"
)

// What a child of a test does, by its variables.
const (
	envKillAt    = "RATION_TEST_KILL_AT"
	envNamespace = "RATION_TEST_USER_NAMESPACE"
	anywhere     = "anywhere" // not at a point
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(envKillAt) == anywhere:
		os.Exit(prepareForEver())
	case os.Getenv(envKillAt) != "":
		os.Exit(prepareUntilKilled(os.Getenv(envKillAt)))
	case os.Getenv(envNamespace) != "":
		os.Exit(runInUserNamespace(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// newNode returns a node with two stand-in GPUs, in folders of its own.
func newNode(t *testing.T) *Node {
	t.Helper()
	for _, b := range []embedded.Bundle{embedded.Ration, embedded.FakeGPU} {
		if err := b.Built(); err != nil {
			t.Skip(err)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("the jobs of claims are root's")
	}
	base := t.TempDir()
	t.Setenv("RATION_DIR", filepath.Join(base, "jobs"))
	t.Setenv("FAKEGPU_QUIET", "1")
	n := nodeAt(t, base)
	t.Cleanup(func() { // what is mounted cannot be removed with the folder
		if _, err := n.Sweep(func(claim.Plan) (bool, error) { return true, nil }); err != nil {
			t.Error(err)
		}
	})
	return n
}

func nodeAt(t testing.TB, base string) *Node {
	t.Helper()
	n, err := nodeIn(base)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func nodeIn(base string) (*Node, error) {
	gpus, err := FakeGPUs("h200x2")
	return &Node{GPUs: gpus, FakeGPU: "h200x2", State: filepath.Join(base, "state"), CDI: filepath.Join(base, "cdi")}, err
}

// plan returns a claim of memory on GPU 0.
func (n *Node) plan(uid string, memory uint64) claim.Plan {
	g := n.GPUs[0]
	return claim.Plan{UID: uid, Namespace: "ns", Name: "c", Pods: []claim.Pod{{Name: "p", UID: "u"}},
		Rations: []claim.Ration{{Shares: []claim.Share{{Index: 0, UUID: g.UUID, Device: g.Name(), Memory: memory, Compute: 30, ComputeMax: 50}}}},
		Results: []claim.Result{{Request: "gpu", Pool: "n", Device: g.Name(), ShareID: "s"}}}
}

func (n *Node) readSpec(t *testing.T, uid string) (spec specs.Spec) {
	t.Helper()
	text, err := os.ReadFile(n.specFile(uid))
	if err == nil {
		err = json.Unmarshal(text, &spec)
	}
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// checkNothingLeft checks that a node has nothing of any claim.
func checkNothingLeft(t *testing.T, n *Node) {
	t.Helper()
	for _, folder := range []string{n.State, n.CDI, os.Getenv("RATION_DIR")} {
		entries, err := os.ReadDir(folder)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
		for _, e := range entries {
			if e.Name() != "lock" && e.Name() != embedded.FolderName {
				t.Errorf("%s is left in %s", e.Name(), folder)
			}
		}
	}
}

func TestPrepare(t *testing.T) {
	n := newNode(t)
	asked := 0
	n.Containers = func(namespace, claimName string, pods []claim.Pod) map[string][]string {
		asked += len(pods)
		f, err := os.Open(filepath.Join(n.State, "lock"))
		if err == nil {
			err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
			_ = f.Close()
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("others wait while the API server is asked: %v", err)
		}
		out := map[string][]string{}
		for _, pod := range pods {
			out[pod.UID] = []string{"train of " + pod.Name}
		}
		return out
	}
	p := n.plan(uid, 10*gib)
	first, err := n.Prepare(p)
	if err != nil {
		t.Fatal(err)
	}
	if len(first) != 1 || first[0].CDI != "gpu.ration/claim="+uid || first[0].Request != "gpu" || first[0].ShareID != "s" {
		t.Errorf("got %+v", first)
	}
	j, err := machine.ReadJob(JobPrefix + uid)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []uint64{10 * gib, 1 << 20} {
		if d := j.Devices[i]; !d.Limited || d.Limit != want || d.UUID != n.GPUs[i].UUID {
			t.Errorf("device %d has %+v, want a limit of %d", i, d, want)
		}
	}
	if j.Kubernetes == nil || j.Kubernetes.String() != "pod ns/p (train of p), claim c" {
		t.Errorf("the job says it is of %v", j.Kubernetes)
	}
	if c := j.Devices[0].Compute; c == nil || c.Share != 30 || c.Max != 50 {
		t.Errorf("its compute is %+v", c)
	}
	want := job.Kubernetes{Namespace: "ns", Claim: "c", ClaimUID: uid, Pods: []job.Pod{{Name: "p", UID: "u", Containers: []string{"train of p"}}}}
	if k := job.ReadKubernetes(JobPrefix + uid); k == nil || !reflect.DeepEqual(*k, want) {
		t.Errorf("got %+v, want %+v", k, want)
	}
	spec := n.readSpec(t, uid)
	for _, m := range spec.Devices[0].ContainerEdits.Mounts {
		writable := m.ContainerPath == "/run/ration/job/region" || m.ContainerPath == "/run/ration/job/gpu"
		if options := strings.Join(m.Options, ","); strings.HasSuffix(options, "rw") != writable || m.HostPath == filepath.Dir(j.Path) {
			t.Errorf("%s is mounted on %s with %s", m.HostPath, m.ContainerPath, options)
		}
	}
	for _, entry := range spec.Devices[0].ContainerEdits.Env {
		if !strings.HasPrefix(entry, "FAKEGPU_STATE=") && !strings.HasPrefix(entry, "LD_LIBRARY_PATH=") {
			t.Errorf("the container gets %s, which two claims could set", entry)
		}
	}

	// Again, by a plugin that was started anew, for another pod: the same answer, and the same job.
	p.Pods = append(p.Pods, claim.Pod{Name: "q", UID: "v"})
	next := nodeAt(t, filepath.Dir(n.State))
	next.Containers = n.Containers
	again, err := next.Prepare(p)
	if err != nil || !reflect.DeepEqual(again, first) {
		t.Errorf("again it is %+v, %v", again, err)
	}
	if same, err := machine.ReadJob(JobPrefix + uid); err != nil || same.Created != j.Created {
		t.Errorf("the job was made anew: %v", err)
	}
	if k := job.ReadKubernetes(JobPrefix + uid); k == nil || len(k.Pods) != 2 || len(k.Pods[0].Containers) != 1 || len(k.Pods[1].Containers) != 1 {
		t.Errorf("the job does not know the second pod, or not the first: %+v", k)
	}
	if asked != 2 {
		t.Errorf("for two pods %d were asked for", asked)
	}
	for range 2 {
		if err := n.Unprepare(uid); err != nil {
			t.Fatal(err)
		}
		checkNothingLeft(t, n)
	}
	if err := n.Unprepare("../" + uid); err == nil {
		t.Error("a path passes for a UID")
	}
}

// What an operator changes in a running job stays; what was removed is made again.
func TestPrepareRepairs(t *testing.T) {
	n := newNode(t)
	p := n.plan(uid, 10*gib)
	prepare := func() {
		t.Helper()
		if _, err := n.Prepare(p); err != nil {
			t.Fatal(err)
		}
		if j, err := machine.ReadJob(JobPrefix + uid); err != nil || j.Devices[0].Limit != 10*gib {
			t.Fatalf("got %+v, %v", j, err)
		}
		n.readSpec(t, uid)
	}
	prepare()
	for name, spoil := range map[string]func() error{
		"no spec":  func() error { return os.Remove(n.specFile(uid)) },
		"cut spec": func() error { return os.Truncate(n.specFile(uid), 10) },
		"no job":   func() error { return job.Remove(jobAt(JobPrefix+uid), true) },
		"no region": func() error { // as in another mount namespace
			return unix.Unmount(jobAt(JobPrefix+uid).Path, unix.MNT_DETACH)
		},
		"no record": func() error { return os.Remove(n.recordFile(uid)) },
		"cut record": func() error {
			return os.Truncate(n.recordFile(uid), 10)
		},
		"another job": func() error {
			return errors.Join(job.Remove(jobAt(JobPrefix+uid), true), n.makeJob(JobPrefix+uid, n.plan(uid, 20*gib).Rations[0]))
		},
		"another allocation": func() error {
			_, err := n.Prepare(n.plan(uid, 20*gib))
			if j, e := machine.ReadJob(JobPrefix + uid); err == nil && (e != nil || j.Devices[0].Limit != 20*gib) {
				return fmt.Errorf("the job is of the last allocation: %+v, %w", j.Devices, e)
			}
			return err
		},
		"no library": func() error {
			for _, m := range n.readSpec(t, uid).Devices[0].ContainerEdits.Mounts {
				if m.ContainerPath == "/run/ration/lib/libration.so" {
					return os.RemoveAll(filepath.Dir(m.HostPath))
				}
			}
			return errors.New("the spec has no library")
		},
	} {
		if err := spoil(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Run(name, func(*testing.T) { prepare() })
	}
	if err := n.Unprepare(uid); err != nil {
		t.Fatal(err)
	}
	checkNothingLeft(t, n)
}

func jobAt(name string) job.Job {
	return job.Job{Name: name, Path: filepath.Join(job.Folder(), name, job.RegionName)}
}

// Each request its own job, if the claim says so.
func TestPreparePerRequest(t *testing.T) {
	n := newNode(t)
	p := n.plan(uid, 10*gib)
	second := p.Rations[0].Shares[0]
	second.Memory = 20 * gib
	p.Rations[0].Request = "a"
	p.Rations = append(p.Rations, claim.Ration{Request: "b", Shares: []claim.Share{second}})
	p.Rations[1].Shares[0].Compute = 20
	p.Results = append(p.Results, claim.Result{Request: "b", Pool: "n", Device: second.Device, Ration: 1})
	got, err := n.Prepare(p)
	if err != nil || len(got) != 2 || got[0].CDI != "gpu.ration/claim="+uid+".0" || got[1].CDI != "gpu.ration/claim="+uid+".1" {
		t.Fatalf("got %+v, %v", got, err)
	}
	for i, want := range []uint64{10 * gib, 20 * gib} {
		if j, err := machine.ReadJob(fmt.Sprintf("%s%s.%d", JobPrefix, uid, i)); err != nil || j.Devices[0].Limit != want {
			t.Errorf("job %d: %+v, %v", i, j, err)
		}
	}
	if err := n.Unprepare(uid); err != nil {
		t.Fatal(err)
	}
	checkNothingLeft(t, n)
}

// The last line of defence.
func TestOverbooked(t *testing.T) {
	n := newNode(t)
	total := n.GPUs[0].Capacity()
	if _, err := n.Prepare(n.plan(uid, total-gib)); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Prepare(n.plan(other, 2*gib)); err == nil || !strings.Contains(err.Error(), "overbooked") {
		t.Errorf("got %v", err)
	}
	if records, err := n.Records(); err != nil || len(records) != 1 {
		t.Errorf("%d records, %v", len(records), err)
	}
	if _, err := n.Prepare(n.plan(other, gib)); err != nil {
		t.Error(err)
	}
}

// What is swept is what is gone, and no more.
func TestSweep(t *testing.T) {
	n := newNode(t)
	for i, id := range []string{uid, other, uid + "0"} {
		p := n.plan(id, gib)
		p.Rations[0].Shares[0].Compute = 0
		p.Name = fmt.Sprintf("c%d", i)
		if _, err := n.Prepare(p); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Remove(n.recordFile(uid)), os.WriteFile(filepath.Join(n.CDI, safepath.TempPrefix+"x"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	removed, err := n.Sweep(func(p claim.Plan) (bool, error) {
		switch p.Name {
		case "c0": // the name that the job has
			return true, nil
		case "c1":
			return false, nil
		}
		return false, errors.New("the API server does not answer")
	})
	if len(removed) != 1 || removed[0] != uid || err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("removed %v, %v", removed, err)
	}
	left, _ := filepath.Glob(filepath.Join(n.CDI, "*"))
	hidden, _ := filepath.Glob(filepath.Join(n.CDI, ".*"))
	if records, err := n.Records(); err != nil || len(records) != 2 || len(left) != 2 || len(hidden) != 0 {
		t.Errorf("%d records, %v %v, %v", len(records), left, hidden, err)
	}
}

// A claim that is prepared while the API server is asked about it is not swept: the answer is of before.
func TestSweepKeepsWhatWasPreparedSince(t *testing.T) {
	n := newNode(t)
	prepare := func() {
		t.Helper()
		if _, err := n.Prepare(n.plan(uid, gib)); err != nil {
			t.Fatal(err)
		}
	}
	prepare()
	removed, err := n.Sweep(func(claim.Plan) (bool, error) {
		prepare() // it does not wait for the answer
		return true, nil
	})
	if len(removed) != 0 || err != nil {
		t.Errorf("removed %v, %v", removed, err)
	}
	n.readSpec(t, uid)
	if _, err := machine.ReadJob(JobPrefix + uid); err != nil {
		t.Error(err)
	}
}
