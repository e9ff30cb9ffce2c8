package node

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"ration/check/expect"
	"ration/internal/job"
	"ration/internal/region"
	"ration/kube/claim"
)

// limitOf returns the limit that is in force for the job of a claim on GPU 0.
func limitOf(t *testing.T, uid string) uint64 {
	t.Helper()
	page, err := region.OpenOperatorLimits(filepath.Join(os.Getenv("RATION_DIR"), JobPrefix+uid, job.RegionName))
	expect.OK(t, err)
	l, err := page.Limit(0)
	expect.OK(t, err)
	return l.Bytes()
}

// A claim is resized while it is prepared. What it has beyond its allocation is booked: the other claims cannot have it.
func TestResize(t *testing.T) {
	n := newNode(t)
	n.GPUs[0].Memory = 40 * gib
	for _, u := range []string{uid, other} {
		_, err := n.Prepare(n.plan(u, 10*gib))
		expect.OK(t, err)
	}
	resize := func(uid string, memory uint64, want uint64) {
		t.Helper()
		changed, err := n.Resize(uid, memory)
		expect.True(t, changed && err == nil, changed, err)
		expect.Equal(t, limitOf(t, uid), want)
		changed, err = n.Resize(uid, memory)
		expect.True(t, !changed && err == nil, "the same again", changed, err)
	}
	resize(uid, 5*gib, 5*gib)
	_, err := n.Resize(uid, 31*gib) // with the other's allocation, not with what this one has now
	expect.True(t, errors.Is(err, ErrOverbooked), err)
	expect.Equal(t, limitOf(t, uid), uint64(5*gib))
	resize(uid, 30*gib+1, 30*gib) // whole steps
	extra, err := n.Extra()
	expect.True(t, err == nil && extra[n.GPUs[0].Name()] == 20*gib, extra, err)
	_, err = n.Resize(other, 10*gib+1<<20)
	expect.True(t, errors.Is(err, ErrOverbooked), err)
	third := "6b0e6a3c-8d53-4a76-9d0e-0123456789ad"
	_, err = n.Prepare(n.plan(third, gib))
	expect.True(t, errors.Is(err, ErrOverbooked), "the extra memory is promised to another claim", err)
	resize(uid, 0, 10*gib)
	_, err = n.Prepare(n.plan(third, gib))
	expect.OK(t, err)
	_, err = n.Resize(uid, 1<<20)
	expect.True(t, err != nil, "too few")
	_, err = n.Resize("6b0e6a3c-8d53-4a76-9d0e-0123456789ae", gib)
	expect.True(t, errors.Is(err, ErrNotPrepared), err)
	for _, u := range []string{uid, other, third} {
		expect.OK(t, n.Unprepare(u))
	}
	checkNothingLeft(t, n)
}

// The kubelet prepares a claim again that was resized: it keeps its size.
func TestResizedIsPreparedAgain(t *testing.T) {
	n := newNode(t)
	p := n.plan(uid, 10*gib)
	for range 2 {
		_, err := n.Prepare(p)
		expect.OK(t, err)
		_, err = n.Resize(uid, 20*gib)
		expect.OK(t, err)
	}
	_, err := n.Prepare(p)
	expect.OK(t, err)
	expect.Equal(t, limitOf(t, uid), uint64(20*gib))
	r, err := n.Record(uid)
	expect.True(t, err == nil && r.Extra[n.GPUs[0].Name()] == 10*gib, r, err)
}

// A claim with several rations says so.
func TestResizeOfRequests(t *testing.T) {
	n := newNode(t)
	p := n.plan(uid, 10*gib)
	p.Rations[0].Request = "gpu"
	second := p.Rations[0]
	second.Request = "b"
	p.Rations, p.Results = append(p.Rations, second), append(p.Results, claim.Result{Request: "b", Pool: "n", Device: n.GPUs[0].Name(), ShareID: "t", Ration: 1})
	_, err := n.Prepare(p)
	expect.OK(t, err)
	_, err = n.Resize(uid, 20*gib)
	expect.True(t, err != nil, "which of the two?")
	changed, err := n.Resize(uid, 0)
	expect.True(t, !changed && err == nil, changed, err)
}

// A plugin that is killed while it resizes leaves no limit beyond what is booked, and the next one finishes.
func TestKilledResizing(t *testing.T) {
	for _, point := range []string{PointBooked, PointResized} {
		for name, sizes := range map[string][2]uint64{"raised": {0, 20 * gib}, "lowered": {20 * gib, 15 * gib}} {
			if name == "lowered" && point == PointBooked {
				continue // nothing more is booked
			}
			t.Run(point+", "+name, func(t *testing.T) {
				n := newNode(t)
				_, err := n.Prepare(n.plan(uid, 10*gib))
				expect.OK(t, err)
				_, err = n.Resize(uid, sizes[0])
				expect.OK(t, err)
				child := exec.Command(os.Args[0], filepath.Dir(n.State))
				child.Env = append(os.Environ(), envKillAt+"="+point, envResize+"="+name)
				out, err := child.CombinedOutput()
				var exit *exec.ExitError
				expect.Must(t, errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL, "it was not killed", err, string(out))
				r, err := n.Record(uid)
				expect.OK(t, err)
				booked := 10*gib + r.Extra[n.GPUs[0].Name()]
				expect.True(t, limitOf(t, uid) <= booked, "the limit is", limitOf(t, uid), "and", booked, "is booked")
				_, err = n.Resize(uid, sizes[1])
				expect.OK(t, err)
				expect.Equal(t, limitOf(t, uid), sizes[1])
				r, err = n.Record(uid)
				expect.True(t, err == nil && r.Extra[n.GPUs[0].Name()] == sizes[1]-10*gib, r, err)
			})
		}
	}
}

// resizeUntilKilled resizes a claim as a child of TestKilledResizing.
func resizeUntilKilled(n *Node) error {
	memory := uint64(20 * gib)
	if os.Getenv(envResize) == "lowered" {
		memory = 15 * gib
	}
	_, err := n.Resize(uid, memory)
	return err
}

// NVML counts the GPUs anew when one is added or removed. A claim that is prepared keeps its job.
func TestIndexThatChanges(t *testing.T) {
	n := newNode(t)
	p := n.plan(uid, 10*gib)
	_, err := n.Prepare(p)
	expect.OK(t, err)
	before, err := n.Record(uid)
	expect.OK(t, err)
	again := n.plan(uid, 10*gib)
	again.Rations[0].Shares[0].Index = 1
	_, err = n.Prepare(again)
	expect.OK(t, err)
	after, err := n.Record(uid)
	expect.OK(t, err)
	expect.Equal(t, after.Created[0], before.Created[0])
	expect.Equal(t, after.Plan.Rations[0].Shares[0].Index, 0)
}

// What a job holds beyond a lowered limit stays booked until it has freed it.
func TestResizeOfWhatIsHeld(t *testing.T) {
	n := newNode(t)
	_, err := n.Prepare(n.plan(uid, gib))
	expect.OK(t, err)
	_, err = n.Resize(uid, 3*gib)
	expect.OK(t, err)
	_, end := startHolder(t, n) // 1 GiB, and its context
	_, err = n.Resize(uid, 0)
	expect.True(t, errors.Is(err, ErrHolds), err)
	expect.Equal(t, limitOf(t, uid), uint64(gib))
	extra, err := n.Extra()
	expect.True(t, err == nil && extra[n.GPUs[0].Name()] == 2*gib, extra, err)
	end()
	_, err = n.Resize(uid, 0)
	expect.OK(t, err)
	extra, err = n.Extra()
	expect.True(t, err == nil && extra[n.GPUs[0].Name()] == 0, extra, err)
}
