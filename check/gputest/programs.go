package gputest

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// programChecks run programs as users write them. Each does something that is
// difficult for a preloaded library. Those of NCCL have one rank: it refuses a second one
// on a device.
func programChecks() []Check {
	program := func(name string, limit uint64, script string, args ...string) Check {
		return Check{Group: "program", Name: name, Needs: []string{torch}, Room: limit + gib, run: func(t *Trial) error {
			return t.runSteps(limit, t.script(script, args...))
		}}
	}
	nccl := func(name string, modes ...string) Check {
		return Check{Group: "nccl", Name: name, Needs: []string{torch}, Room: 9 * gib, run: func(t *Trial) error {
			free, err := freePorts(1)
			if err != nil {
				return err
			}
			return t.runSteps(8*gib, t.script("nccl", append(free, modes...)...))
		}}
	}
	return []Check{
		nccl("plain"),
		nccl("registered", "registered"),
		nccl("graphs", "graphs"),
		nccl("registered-graphs", "registered", "graphs"),
		program("dataloader-workers", 8*gib, "workers"),
		program("cuda-graphs", 8*gib, "graphs"),
		async(program("cuda-graphs-async", 8*gib, "graphs")),
		program("compile", 8*gib, "compiled"),
		program("compile-reduce-overhead", 8*gib, "compiled", "reduce-overhead"),
		program("tensor-ipc", 8*gib, "share"),
		{Group: "program", Name: "mpi-x8", Needs: []string{torch, openMPI}, Room: 17 * gib, run: func(t *Trial) error {
			return t.ranks(16*gib, func(string) []string {
				return []string{"mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "8"}
			})
		}},
		{Group: "program", Name: "torchrun-x4", Needs: []string{torch, "torchrun"}, Room: 9 * gib, run: func(t *Trial) error {
			return t.ranks(8*gib, func(port string) []string {
				return []string{"torchrun", "--nproc-per-node", "4", "--master-port", port, "--no-python"}
			})
		}},
	}
}

// async has a check's programs use PyTorch's stream-ordered allocator.
func async(c Check) Check {
	run := c.run
	c.run = func(t *Trial) error {
		t.env = torchAlloc("backend:cudaMallocAsync")
		return run(t)
	}
	return c
}

// freePorts returns n TCP ports that were not in use a moment ago.
func freePorts(n int) (free []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("looking for a free port: %w", err)
		}
		defer l.Close() // after all were found, so that they differ
		free = append(free, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	}
	return free, nil
}

// ranks starts a program of several processes inside the job, by a launcher that may
// need a port. Only one of the processes prints steps.
func (t *Trial) ranks(limit uint64, launcher func(port string) []string) error {
	if err := t.open(limit); err != nil {
		return err
	}
	free, err := freePorts(2) // one for the launcher, one for the ranks
	if err != nil {
		return err
	}
	if _, err := t.start(nil, append(launcher(free[0]), t.script("rank", free[1])...)...); err != nil {
		return err
	}
	var names []string
	err = t.eachStep(func(steps []Step) error {
		all, err := t.compare(steps[0].Name)
		names = append(names, fmt.Sprintf("%s with %d processes", steps[0].Name, len(all)))
		return err
	})
	if err != nil {
		return err
	}
	t.note("%s", strings.Join(names, ", "))
	t.noteDifference()
	return t.checkNothingLeft()
}
