package node

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/specs-go"

	"ration/check/expect"
	"ration/internal/embedded"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/region"
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
	envResize    = "RATION_TEST_RESIZE" // how, if it does not prepare
	anywhere     = "anywhere"           // not at a point
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
		_, err := n.Sweep(func(claim.Plan) (bool, error) { return true, nil })
		expect.Equal(t, err, nil)
	})
	return n
}

func nodeAt(t testing.TB, base string) *Node {
	t.Helper()
	n, err := nodeIn(base)
	expect.OK(t, err)
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
	expect.OK(t, err)
	return spec
}

// checkNothingLeft checks that a node has nothing of any claim.
func checkNothingLeft(t *testing.T, n *Node) {
	t.Helper()
	for _, folder := range []string{n.State, n.CDI, os.Getenv("RATION_DIR")} {
		entries, err := os.ReadDir(folder)
		expect.True(t, err == nil || errors.Is(err, os.ErrNotExist), err)
		for _, e := range entries {
			expect.True(t, e.Name() == "lock" || e.Name() == embedded.FolderName, e.Name(), "is left in", folder)
		}
	}
}

// The job of a claim has its priority and its wait for memory, and its containers see the file by which jobs with a priority
// know of each other. Others do not.
func TestPreparePriority(t *testing.T) {
	n := newNode(t)
	for _, priority := range []limit.Priority{0, limit.PriorityLow} {
		p := n.plan(uid, 10*gib)
		p.Rations[0].Priority, p.Rations[0].WaitAlloc = priority, 1500
		_, err := n.Prepare(p)
		expect.OK(t, err)
		limits, err := region.OpenOperatorLimits(filepath.Join(os.Getenv("RATION_DIR"), jobName(p, 0), job.RegionName))
		expect.OK(t, err)
		expect.Equal(t, limits.Priority(), uint64(cmp.Or(priority, limit.PriorityNormal)))
		j, err := machine.ReadJob(JobPrefix + uid)
		expect.True(t, err == nil && j.WaitAlloc == 1500, "requests wait", j.WaitAlloc, err)
		mounted := false
		for _, m := range n.readSpec(t, uid).Devices[0].ContainerEdits.Mounts {
			if m.ContainerPath == "/run/ration/"+job.PriorityFile {
				mounted = true
				expect.True(t, slices.Contains(m.Options, "ro"), m.Options)
				st, err := os.Stat(m.HostPath)
				expect.True(t, err == nil && st.Mode() == 0o444, st, err)
			}
		}
		expect.Equal(t, mounted, priority != 0)
		expect.OK(t, n.Unprepare(uid))
	}
}

func TestPrepare(t *testing.T) {
	n := newNode(t)
	asked := 0
	n.Containers = func(namespace, claimName string, pods []claim.Pod) (map[string][]Container, error) {
		asked += len(pods)
		f, err := os.Open(filepath.Join(n.State, "lock"))
		if err == nil {
			err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
			_ = f.Close()
		}
		expect.True(t, err == nil || errors.Is(err, os.ErrNotExist), "others wait while the API server is asked", err)
		out := map[string][]Container{}
		for _, pod := range pods {
			out[pod.UID] = []Container{{Name: "train of " + pod.Name}}
		}
		return out, nil
	}
	p := n.plan(uid, 10*gib)
	first, err := n.Prepare(p)
	expect.OK(t, err)
	expect.True(t, len(first) == 1 && first[0].CDI == "gpu.ration/claim="+uid && first[0].Request == "gpu" && first[0].ShareID == "s",
		first)
	j, err := machine.ReadJob(JobPrefix + uid)
	expect.OK(t, err)
	expect.True(t, len(j.Devices) == 1 && j.Devices[0].Limit == 10*gib && j.Devices[0].UUID == n.GPUs[0].UUID, "the job has", j.Devices)
	page, err := region.OpenOperatorLimits(j.Path)
	expect.OK(t, err)
	for i := 1; i < limit.MaxDevices; i++ { // nothing of other devices, even if the container sees them
		l, err := page.Limit(i)
		expect.True(t, err == nil && l.Limited() && l.Bytes() == 1<<20, "device", i, "has", l, err)
	}
	expect.True(t, j.Kubernetes != nil && j.Kubernetes.String() == "pod ns/p (train of p), claim c", "the job says it is of", j.Kubernetes)
	c := j.Devices[0].Compute
	expect.True(t, c != nil && c.Share == 30 && c.Max == 50, "its compute is", c)
	want := job.Kubernetes{Namespace: "ns", Claim: "c", ClaimUID: uid, Pods: []job.Pod{{Name: "p", UID: "u", Containers: []string{"train of p"}}}}
	k := job.ReadKubernetes(JobPrefix + uid)
	expect.True(t, k != nil && reflect.DeepEqual(*k, want), k, want)
	spec := n.readSpec(t, uid)
	for _, m := range spec.Devices[0].ContainerEdits.Mounts {
		writable := m.ContainerPath == "/run/ration/job/region" || m.ContainerPath == "/run/ration/job/gpu"
		options := strings.Join(m.Options, ",")
		expect.True(t, strings.HasSuffix(options, "rw") == writable && m.HostPath != filepath.Dir(j.Path),
			m.HostPath, "is mounted on", m.ContainerPath, "with", options)
	}
	for _, entry := range spec.Devices[0].ContainerEdits.Env {
		expect.True(t, strings.HasPrefix(entry, "FAKEGPU_STATE=") || strings.HasPrefix(entry, "LD_LIBRARY_PATH="),
			"the container gets", entry, "which two claims could set")
	}

	// Again, by a plugin that was started anew, for another pod: the same answer, and the same job.
	p.Pods = append(p.Pods, claim.Pod{Name: "q", UID: "v"})
	next := nodeAt(t, filepath.Dir(n.State))
	next.Containers = n.Containers
	again, err := next.Prepare(p)
	expect.True(t, err == nil && reflect.DeepEqual(again, first), "again it is", again, err)
	same, err := machine.ReadJob(JobPrefix + uid)
	expect.True(t, err == nil && same.Created == j.Created, "the job was made anew", err)
	k = job.ReadKubernetes(JobPrefix + uid)
	expect.True(t, k != nil && len(k.Pods) == 2 && len(k.Pods[0].Containers) == 1 && len(k.Pods[1].Containers) == 1,
		"the job does not know the second pod, or not the first", k)
	expect.Equal(t, asked, 2, "asked for, for two pods")
	for range 2 {
		expect.OK(t, n.Unprepare(uid))
		checkNothingLeft(t, n)
	}
	expect.True(t, n.Unprepare("../"+uid) != nil, "a path passes for a UID")
}

// What an operator changes in a running job stays; what was removed is made again.
func TestPrepareRepairs(t *testing.T) {
	n := newNode(t)
	p := n.plan(uid, 10*gib)
	prepare := func() {
		t.Helper()
		_, err := n.Prepare(p)
		expect.OK(t, err)
		j, err := machine.ReadJob(JobPrefix + uid)
		expect.Must(t, err == nil && j.Devices[0].Limit == 10*gib, j, err)
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
		expect.OK(t, spoil(), name)
		t.Run(name, func(*testing.T) { prepare() })
	}
	expect.OK(t, n.Unprepare(uid))
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
	expect.Must(t, err == nil && len(got) == 2 && got[0].CDI == "gpu.ration/claim="+uid+".0" && got[1].CDI == "gpu.ration/claim="+uid+".1",
		got, err)
	for i, want := range []uint64{10 * gib, 20 * gib} {
		j, err := machine.ReadJob(fmt.Sprintf("%s%s.%d", JobPrefix, uid, i))
		expect.True(t, err == nil && j.Devices[0].Limit == want, "job", i, j, err)
	}
	expect.OK(t, n.Unprepare(uid))
	checkNothingLeft(t, n)
}

// The last line of defence.
func TestOverbooked(t *testing.T) {
	n := newNode(t)
	total := n.GPUs[0].Capacity()
	_, err := n.Prepare(n.plan(uid, total-gib))
	expect.OK(t, err)
	_, err = n.Prepare(n.plan(other, 2*gib))
	expect.True(t, err != nil && strings.Contains(err.Error(), "overbooked"), err)
	records, err := n.Records()
	expect.True(t, err == nil && len(records) == 1, len(records), "records", err)
	_, err = n.Prepare(n.plan(other, gib))
	expect.Equal(t, err, nil)
}

// What is swept is what is gone, and no more.
func TestSweep(t *testing.T) {
	n := newNode(t)
	for i, id := range []string{uid, other, uid + "0"} {
		p := n.plan(id, gib)
		p.Rations[0].Shares[0].Compute = 0
		p.Name = fmt.Sprintf("c%d", i)
		_, err := n.Prepare(p)
		expect.OK(t, err)
	}
	expect.OK(t, errors.Join(os.Remove(n.recordFile(uid)), os.WriteFile(filepath.Join(n.CDI, safepath.TempPrefix+"x"), nil, 0o600)))
	removed, err := n.Sweep(func(p claim.Plan) (bool, error) {
		switch p.Name {
		case "c0": // the name that the job has
			return true, nil
		case "c1":
			return false, nil
		}
		return false, errors.New("the API server does not answer")
	})
	expect.True(t, len(removed) == 1 && removed[0] == uid && err != nil && strings.Contains(err.Error(), "does not answer"),
		"removed", removed, err)
	left, _ := filepath.Glob(filepath.Join(n.CDI, "*"))
	hidden, _ := filepath.Glob(filepath.Join(n.CDI, ".*"))
	records, err := n.Records()
	expect.True(t, err == nil && len(records) == 2 && len(left) == 2 && len(hidden) == 0, len(records), "records", left, hidden, err)
}

// A claim that is prepared while the API server is asked about it is not swept: the answer is of before.
func TestSweepKeepsWhatWasPreparedSince(t *testing.T) {
	n := newNode(t)
	prepare := func() {
		t.Helper()
		_, err := n.Prepare(n.plan(uid, gib))
		expect.OK(t, err)
	}
	prepare()
	removed, err := n.Sweep(func(claim.Plan) (bool, error) {
		prepare() // it does not wait for the answer
		return true, nil
	})
	expect.True(t, len(removed) == 0 && err == nil, "removed", removed, err)
	n.readSpec(t, uid)
	_, err = machine.ReadJob(JobPrefix + uid)
	expect.Equal(t, err, nil)
}
