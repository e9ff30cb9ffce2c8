package processes

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"ration/check/expect"
	"ration/check/harness"
	"ration/check/testenv"
	"ration/internal/region"
)

// needPIDs skips a test if the kernel does not let this user make a PID namespace.
func needPIDs(t testing.TB) {
	t.Helper()
	w, err := tryStart(t, 0, inGo.plain, harness.NewPIDs)
	if err != nil {
		t.Skipf("cannot make a PID namespace: %v", err)
	}
	w.Kill()
}

// startBeside starts a worker in the PID namespace of another one. Only root may: an
// ordinary user would have to enter the user namespace of the other, which a process
// with several threads cannot.
func startBeside(t testing.TB, w *worker, path string, options ...option) *worker {
	t.Helper()
	testenv.NeedsRoot(t, "only root can enter another process's PID namespace")
	return mustStart(t, w.PID(), path, options...)
}

// enter starts n workers at once, each in a PID namespace of its own, in which each has
// the PID 1.
func enter(t *testing.T, mix impls, n int, path string) []*worker {
	t.Helper()
	gate := newGate(t)
	workers := make([]*worker, n)
	for i := range workers {
		workers[i] = start(t, mix, i, harness.NewPIDs, at(gate))
		workers[i].Tell("gate")
		workers[i].Tell("open %s 0=%d", path, n*piece)
		workers[i].Tell("claim worker-%d", i)
		workers[i].Tell("charge 0 data %d", piece)
	}
	gate.Open()
	for _, w := range workers {
		w.answers(4)
	}
	return workers
}

// The host knows the host PID of every process at once, also if all of them start
// together and have the PID 1; and killed, they are reaped from the host or from
// another namespace.
func TestNamespaces(t *testing.T) {
	needPIDs(t)
	for _, reaper := range []string{"host", "namespace"} {
		for _, n := range []int{8, 32} {
			t.Run(fmt.Sprintf("%d reaped from %s", n, reaper), func(t *testing.T) {
				eachMix(t, func(t *testing.T, mix impls) {
					path := newPath(t)
					workers := enter(t, mix, n, path)
					if reaper == "host" {
						testenv.NeedsHost(t)
						checkHostPIDs(t, path, workers)
					}
					var options []option
					if reaper == "namespace" {
						options = append(options, harness.NewPIDs)
					}
					heir := start(t, mix, n, options...)
					heir.join(path, "heir")
					for _, w := range workers[:n/2] {
						w.Kill()
					}
					heir.reaps(n / 2)
					for _, w := range workers[n/2:] {
						w.Kill()
					}
					heir.OK("charge 0 data %d", n*piece)
					finish(t, path, heir)
				})
			})
		}
	}
}

// checkHostPIDs checks that a reader on the host finds each worker's host PID in the
// region.
func checkHostPIDs(t *testing.T, path string, workers []*worker) {
	t.Helper()
	r, err := region.OpenMapped(path)
	expect.OK(t, err)
	defer r.Close()
	list, err := r.Processes()
	expect.OK(t, err)
	host := map[string]int{}
	for _, p := range list {
		expect.True(t, p.PID == 1 && !p.Dead, p.Name, "has PID", p.PID, "dead", p.Dead, "want 1, alive")
		host[p.Name] = p.HostPID
	}
	found := 0
	for i, w := range workers {
		if host[fmt.Sprintf("worker-%d", i)] == w.PID() {
			found++
		}
	}
	t.Logf("host PIDs found: %d of %d", found, len(workers))
	expect.Equal(t, found, len(workers), "host PIDs", host, "of workers")
}

// Two processes of one PID namespace read the /proc of another one, as in a container
// without a /proc of its own. The PIDs there belong to other processes, and say nothing
// about which of the two is alive.
func TestForeignProc(t *testing.T) {
	needPIDs(t)
	eachMix(t, func(t *testing.T, mix impls) {
		path := newPath(t)
		survivor := start(t, mix, 0, harness.NewPIDs)
		survivor.join(path, "survivor", mib)
		victim := namesake(t, survivor, mix.of(1).plain, path)
		victim.OK("claim victim")
		victim.OK("charge 0 data %d", mib)
		victim.Kill()
		survivor.OK("charge 0 data %d", mib)
		finish(t, path, survivor)
	})
}

// namesake starts a worker beside another one and opens the region. The PID of the
// worker in its namespace is that of another process on the host: low numbers there
// belong to kernel threads, which never die.
func namesake(t *testing.T, w *worker, binary, path string) *worker {
	t.Helper()
	for range 100 {
		beside := startBeside(t, w, binary)
		pid := beside.OK("open %s", path).Int("pid")
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
			return beside
		}
		beside.Kill()
	}
	t.Skip("no process of the host has a low PID")
	return nil
}

// A process whose descriptor of the region was closed and reused for another file can
// no longer ask which processes are alive. It must not use an answer about the other
// file.
func TestReusedDescriptor(t *testing.T) {
	needPIDs(t)
	eachMix(t, func(t *testing.T, mix impls) {
		path := newPath(t)
		holder := start(t, mix, 0, harness.NewPIDs)
		holder.join(path, "holder", mib)
		holder.OK("charge 0 data %d", mib)

		careless := start(t, mix, 1, harness.NewPIDs)
		careless.join(path, "careless")
		careless.OK("lose %s", filepath.Join(filepath.Dir(path), "other"))
		expect.True(t, careless.Ask("charge 0 data %d", mib).Verdict() != "ok", "granted bytes that a living process holds")
		holder.Ask("return 0 data %d", mib).want("ok", "a return of bytes that the living process holds")
	})
}

// A process in another namespace that has lost its lock cannot be told from a dead one.
// It is reaped; it gets an error afterwards, and writes nothing more.
func TestEvicted(t *testing.T) {
	needPIDs(t)
	eachMix(t, func(t *testing.T, mix impls) {
		path := newPath(t)
		heir := start(t, mix, 0, harness.NewPIDs)
		heir.join(path, "heir", mib)
		careless := join(t, mix, 1, path)
		careless.OK("charge 0 data %d", mib/2)
		careless.OK("lose")
		heir.OK("charge 0 data %d", mib)
		for _, order := range []string{"charge 0 data 1", "return 0 data 1", "leave"} {
			careless.Ask("%s", order).want("evicted", order)
		}
		checkUsed(t, path, mib)
	})
}
