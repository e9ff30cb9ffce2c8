package gputest

import (
	"fmt"
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
		{Group: "program", Name: "mpi-x8", Needs: []string{torch, mpirun}, Room: 17 * gib, run: func(s *Stage) error {
			return s.ranks(16*gib, "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "8")
		}},
		{Group: "program", Name: "torchrun-x4", Needs: []string{torch, "torchrun"}, Room: 9 * gib, run: func(s *Stage) error {
			return s.ranks(8*gib, "torchrun", "--nproc-per-node", "4", "--master-port", "29613", "--no-python")
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

// ranks starts a program of several processes by its own launcher, inside the job.
// One of them speaks for all.
func (s *Stage) ranks(limit uint64, launcher ...string) error {
	if err := s.open(limit); err != nil {
		return err
	}
	if _, err := s.start(nil, append(launcher, s.script("rank", "29617")...)...); err != nil {
		return err
	}
	var names []string
	err := s.lockstep(func(steps []Step) error {
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
