package test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"ration/internal/region"
	"ration/test/harness"
)

// enter starts n workers at once, each in a PID namespace of its own, in which
// all of them have the same PID.
func enter(t *testing.T, crew harness.Crew, n int, path string) []*harness.Worker {
	t.Helper()
	gate := harness.NewGate(t)
	workers := make([]*harness.Worker, n)
	for i := range workers {
		workers[i] = start(t, crew, i, harness.NewPIDs(), gate.At())
		workers[i].Send("gate")
		workers[i].Send("open %s 0=%d", path, n*piece)
		workers[i].Send("claim worker-%d", i)
		workers[i].Send("charge 0 data %d", piece)
	}
	gate.Open()
	for _, w := range workers {
		for range 4 {
			if a := w.Answer(); a.Verdict() != "ok" {
				t.Fatal(a)
			}
		}
	}
	return workers
}

// The host knows every process by the PID it has there, at once, also when they
// all start together and call themselves 1; and killed, they are given back by
// whoever looks: from the host, or from yet another namespace.
func TestNamespaces(t *testing.T) {
	harness.NeedPIDs(t)
	for _, reaper := range []string{"host", "namespace"} {
		for _, n := range []int{8, 32} {
			t.Run(fmt.Sprintf("%d reaped from %s", n, reaper), func(t *testing.T) {
				harness.Crews(t, func(t *testing.T, crew harness.Crew) {
					path := newPath(t)
					workers := enter(t, crew, n, path)
					if reaper == "host" {
						harness.NeedHost(t)
						knowsAll(t, path, workers)
					}
					var options []harness.Option
					if reaper == "namespace" {
						options = append(options, harness.NewPIDs())
					}
					heir := start(t, crew, n, options...)
					heir.OK("open %s", path)
					heir.OK("claim heir")
					for _, w := range workers[:n/2] {
						w.Kill()
					}
					if got := heir.OK("reap").Int("slots"); got != n/2 {
						t.Errorf("%d of %d dead processes reaped, %d of %d live", got, n/2, n-n/2, n)
					}
					for _, w := range workers[n/2:] {
						w.Kill()
					}
					heir.OK("charge 0 data %d", n*piece)
					heir.Quit()
					pristine(t, path)
				})
			})
		}
	}
}

// knowsAll checks that the host sees each worker's PID in the region.
func knowsAll(t *testing.T, path string, workers []*harness.Worker) {
	t.Helper()
	r, err := region.OpenReadOnly(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	list, err := r.Processes()
	if err != nil {
		t.Fatal(err)
	}
	host := map[string]int{}
	for _, p := range list {
		if p.PID != 1 || p.Dead {
			t.Errorf("%s calls itself %d, dead: %v; want 1, alive", p.Name, p.PID, p.Dead)
		}
		host[p.Name] = p.HostPID
	}
	found := 0
	for i, w := range workers {
		if host[fmt.Sprintf("worker-%d", i)] == w.PID() {
			found++
		}
	}
	t.Logf("host PIDs found: %d of %d", found, len(workers))
	if found != len(workers) {
		t.Errorf("host PIDs %v, want those of %d workers", host, len(workers))
	}
}

// Two processes of one namespace look at the /proc of another, as in a container
// without one of its own. PIDs they read there are somebody else's, and say
// nothing about who lives.
func TestForeignProc(t *testing.T) {
	harness.NeedPIDs(t)
	harness.Crews(t, func(t *testing.T, crew harness.Crew) {
		path := newPath(t)
		survivor := start(t, crew, 0, harness.NewPIDs())
		survivor.OK("open %s 0=%d", path, mib)
		survivor.OK("claim survivor")
		victim := namesake(t, survivor, crew.Of(1).Plain, path)
		victim.OK("claim victim")
		victim.OK("charge 0 data %d", mib)
		victim.Kill()
		survivor.OK("charge 0 data %d", mib)
		survivor.Quit()
		pristine(t, path)
	})
}

// namesake starts a worker beside another whose PID in their namespace is that of
// somebody else on the host, and opens the region. Low numbers belong to threads
// of the kernel there, which never die.
func namesake(t *testing.T, w *harness.Worker, binary, path string) *harness.Worker {
	t.Helper()
	for range 100 {
		beside := harness.StartBeside(t, w, binary)
		pid := beside.OK("open %s", path).Int("pid")
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
			return beside
		}
		beside.Kill()
	}
	t.Skip("none of the host's processes has a low PID")
	return nil
}

// A process whose descriptor of the region was closed, and its number given to
// another file, can no longer ask who lives. It must not take an answer about
// the other file for one.
func TestStrangerBehindTheDescriptor(t *testing.T) {
	harness.NeedPIDs(t)
	harness.Crews(t, func(t *testing.T, crew harness.Crew) {
		path := newPath(t)
		holder := start(t, crew, 0, harness.NewPIDs())
		holder.OK("open %s 0=%d", path, mib)
		holder.OK("claim holder")
		holder.OK("charge 0 data %d", mib)

		careless := start(t, crew, 1, harness.NewPIDs())
		careless.OK("open %s", path)
		careless.OK("claim careless")
		careless.OK("lose %s", filepath.Join(filepath.Dir(path), "other"))
		if got := careless.Ask("charge 0 data %d", mib); got.Verdict() == "ok" {
			t.Errorf("granted what a living process holds")
		}
		if got := holder.Ask("return 0 data %d", mib); got.Verdict() != "ok" {
			t.Errorf("the living process was robbed: %s", got)
		}
	})
}

// A process that loses its lock in another namespace cannot be told from a dead
// one. It is given back; it learns so, and writes nothing more.
func TestEvicted(t *testing.T) {
	harness.NeedPIDs(t)
	harness.Crews(t, func(t *testing.T, crew harness.Crew) {
		path := newPath(t)
		heir := start(t, crew, 0, harness.NewPIDs())
		heir.OK("open %s 0=%d", path, mib)
		heir.OK("claim heir")
		careless := join(t, crew, 1, path)
		careless.OK("charge 0 data %d", mib/2)
		careless.OK("lose")
		heir.OK("charge 0 data %d", mib)
		for _, order := range []string{"charge 0 data 1", "return 0 data 1", "leave"} {
			if got := careless.Ask("%s", order); got.Code() != "evicted" {
				t.Errorf("%s: %s", order, got)
			}
		}
		if used := agree(t, path)[0]; used != mib {
			t.Errorf("%d bytes are granted where %d are held", used, mib)
		}
	})
}
