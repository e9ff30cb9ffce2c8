package gputest

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Programs as people write them, each with something that has surprised a library
// like this one.
func programChecks() []Check {
	play := func(name string, limit uint64, script string, args ...string) Check {
		return Check{Group: "program", Name: name, Needs: []string{torch}, Room: limit + gib, run: func(s *Stage) error {
			return s.walk(limit, s.script(script, args...))
		}}
	}
	return []Check{
		play("dataloader-workers", 8*gib, "workers"),
		play("cuda-graphs", 8*gib, "graphs"),
		async(play("cuda-graphs-async", 8*gib, "graphs")),
		play("compile", 8*gib, "compiled"),
		play("compile-reduce-overhead", 8*gib, "compiled", "reduce-overhead"),
		play("tensor-ipc", 8*gib, "share"),
		{Group: "program", Name: "mpi-x8", Needs: []string{torch, openMPI}, Room: 17 * gib, run: func(s *Stage) error {
			return s.ranks(16*gib, func(string) []string {
				return []string{"mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "8"}
			})
		}},
		{Group: "program", Name: "torchrun-x4", Needs: []string{torch, "torchrun"}, Room: 9 * gib, run: func(s *Stage) error {
			return s.ranks(8*gib, func(port string) []string {
				return []string{"torchrun", "--nproc-per-node", "4", "--master-port", port, "--no-python"}
			})
		}},
	}
}

// async has a check's programs allocate on streams.
func async(c Check) Check {
	run := c.run
	c.run = func(s *Stage) error {
		s.environment = torchAlloc("backend:cudaMallocAsync")
		return run(s)
	}
	return c
}

// ports are some that nobody used a moment ago: all of them at once, so that they differ.
func ports(n int) (free []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("looking for a free port: %w", err)
		}
		defer l.Close()
		free = append(free, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	}
	return free, nil
}

// ranks starts a program of several processes by its own launcher, which may need a
// port, inside the job. One of them speaks for all.
func (s *Stage) ranks(limit uint64, launcher func(port string) []string) error {
	if err := s.open(limit); err != nil {
		return err
	}
	free, err := ports(2) // the launcher's, and the ranks' own
	if err != nil {
		return err
	}
	if _, err := s.start(nil, append(launcher(free[0]), s.script("rank", free[1])...)...); err != nil {
		return err
	}
	var names []string
	err = s.lockstep(func(steps []Step) error {
		all, err := s.agree(steps[0].Name)
		names = append(names, fmt.Sprintf("%s with %d processes", steps[0].Name, len(all)))
		return err
	})
	if err != nil {
		return err
	}
	s.see("%s", strings.Join(names, ", "))
	s.seeOff()
	return s.nothingLeft()
}
