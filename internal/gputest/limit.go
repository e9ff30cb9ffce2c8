package gputest

import (
	"fmt"
	"strconv"

	"ration/internal/humanfmt"
	"ration/internal/limit"
)

const (
	mib = uint64(limit.MiB)
	gib = uint64(limit.GiB)
)

// backend is one way in which programs get their memory.
type backend struct {
	name  string
	needs []string
	env   []string
	// command fills the ration piece by piece; at most so much.
	command func(s *Stage, piece, most string) ([]string, error)
	piece   uint64
	// spare is what may be left where a piece no longer fits: allocators ask the
	// driver for more than they were asked for.
	spare uint64
	// pool is set where a refused request may stay with the program's pool for a while.
	pool bool
}

func native(path string) func(*Stage, string, string) ([]string, error) {
	return func(s *Stage, piece, most string) ([]string, error) { return s.native("allocpaths", path, piece, most), nil }
}

func plain(path string) func(*Stage, string, string) ([]string, error) {
	return func(s *Stage, piece, most string) ([]string, error) {
		program, err := s.built("plain", nvcc, "-O2")
		return []string{program, path, piece, most}, err
	}
}

func script(name string) func(*Stage, string, string) ([]string, error) {
	return func(s *Stage, piece, most string) ([]string, error) { return s.script("fill", name, piece, most), nil }
}

// torchAlloc chooses an allocator, by the name that PyTorch gives the variable now
// and by the one it had.
func torchAlloc(conf string) []string {
	return []string{"PYTORCH_ALLOC_CONF=" + conf, "PYTORCH_CUDA_ALLOC_CONF=" + conf}
}

// backends are all that the limit must hold for.
func backends() []backend {
	const piece = 64 * mib
	return []backend{
		{name: "driver", command: native("linear"), piece: piece},
		{name: "driver-pool", command: native("pool"), piece: piece, spare: 64 * mib, pool: true},
		{name: "driver-vmm", command: native("vmm"), piece: piece},
		{name: "nvcc", needs: []string{nvcc}, command: plain("malloc"), piece: piece},
		{name: "nvcc-async", needs: []string{nvcc}, command: plain("async"), piece: piece, spare: 64 * mib, pool: true},
		{name: "torch", needs: []string{torch}, command: script("torch"), piece: piece},
		{name: "torch-expandable", needs: []string{torch}, env: torchAlloc("expandable_segments:True"), command: script("torch"), piece: piece},
		{name: "torch-async", needs: []string{torch}, env: torchAlloc("backend:cudaMallocAsync"), command: script("torch"), piece: piece, spare: 64 * mib, pool: true},
		{name: "triton", needs: []string{torch, triton}, command: script("triton"), piece: piece},
		{name: "cupy", needs: []string{cupy}, command: script("cupy"), piece: piece},
		{name: "cupy-async", needs: []string{cupy}, command: script("cupy-async"), piece: piece, spare: 64 * mib, pool: true},
		// XLA keeps to three quarters of what it sees, unless it is told to ask the driver
		// for each piece.
		{name: "jax", needs: []string{jax}, command: script("jax"), piece: piece, spare: gib},
		{name: "jax-grow", needs: []string{jax}, env: []string{"XLA_PYTHON_CLIENT_PREALLOCATE=false"}, command: script("jax"), piece: piece, spare: gib},
		{name: "jax-platform", needs: []string{jax}, env: []string{"XLA_PYTHON_CLIENT_ALLOCATOR=platform"}, command: script("jax"), piece: piece, spare: 64 * mib},
		{name: "jax-async", needs: []string{jax}, env: []string{"XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async", "XLA_PYTHON_CLIENT_PREALLOCATE=false"}, command: script("jax"), piece: piece, spare: gib, pool: true},
	}
}

func limitChecks() (all []Check) {
	for _, b := range backends() {
		for _, n := range []int{1, 8} {
			if n > 1 && b.name == "jax" {
				continue // the first to start would have three quarters: jax-grow is what shares
			}
			// A context of each and twice that again.
			limit := 4 * gib
			if n > 1 {
				limit = 16 * gib
			}
			all = append(all, Check{
				Group: "limit", Name: fmt.Sprintf("%s-x%d", b.name, n), Needs: b.needs, Room: limit + gib,
				run: func(s *Stage) error { return s.fill(b, n, limit) },
			})
		}
	}
	return all
}

// fill lets n programs take as much as they get, all at once; return it; and go on.
func (s *Stage) fill(b backend, n int, limit uint64) error {
	if err := s.open(limit); err != nil {
		return err
	}
	if b.pool {
		s.undone = b.piece
	}
	command, err := b.command(s, strconv.FormatUint(b.piece, 10), strconv.FormatUint(2*limit, 10))
	if err != nil {
		return err
	}
	w := s.watch()
	defer w.stop()
	if err := s.startAll(n, b.env, command...); err != nil {
		return err
	}
	if err := s.filled(b); err != nil {
		return err
	}
	if err := s.nothingLeft(); err != nil {
		return err
	}
	err = s.kept(w, n)
	s.see("at most %s of %s by the driver in %s readings", humanfmt.Bytes(w.Most), humanfmt.Bytes(limit), humanfmt.Count(w.Readings))
	s.seeOff()
	return err
}

// filled goes through a backend's steps with all programs at once.
func (s *Stage) filled(b backend) error {
	full := false
	err := s.lockstep(func(steps []Step) error {
		all, err := s.agree(steps[0].Name)
		if err != nil || steps[0].Name != "full" {
			return err
		}
		full = true
		return s.isFull(b, steps, all)
	})
	if err == nil && !full {
		err = fmt.Errorf("no program ever said that it was full")
	}
	return err
}

// isFull sees that all were refused, and rightly: what was left would not have been
// enough.
func (s *Stage) isFull(b backend, steps []Step, all []account) error {
	for i, step := range steps {
		if refused, err := step.Bytes("refused"); err != nil || refused == 0 {
			return fmt.Errorf("pid %d was refused nothing", s.all[i].PID())
		}
	}
	var used uint64
	for _, a := range all {
		used += a.ours
	}
	s.values["left"] = int64(s.limit) - int64(used)
	if used+b.piece+b.spare < s.limit {
		return fmt.Errorf("refused with %s free of %s, where %s would have fit", humanfmt.Bytes(s.limit-used), humanfmt.Bytes(s.limit), humanfmt.Bytes(b.piece))
	}
	return nil
}
