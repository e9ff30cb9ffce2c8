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

// backend is an allocator, and a program that uses it.
type backend struct {
	name  string
	needs []string
	env   []string
	// command returns a program that allocates piece after piece, until it is
	// refused or has most bytes.
	command func(t *Trial, piece, most string) ([]string, error)
	piece   uint64 // in bytes
	// spare is how many bytes may be free at the refusal beyond a piece: allocators
	// ask the driver for more than they need.
	spare uint64
	// pool is set if the program's pool may keep the memory of a refused request for
	// a while.
	pool bool
}

func native(path string) func(*Trial, string, string) ([]string, error) {
	return func(t *Trial, piece, most string) ([]string, error) {
		return t.native("allocpaths", path, piece, most), nil
	}
}

func plain(path string) func(*Trial, string, string) ([]string, error) {
	return func(t *Trial, piece, most string) ([]string, error) {
		program, err := t.compiled("plain", nvcc, "-O2")
		return []string{program, path, piece, most}, err
	}
}

func script(name string) func(*Trial, string, string) ([]string, error) {
	return func(t *Trial, piece, most string) ([]string, error) { return t.script("fill", name, piece, most), nil }
}

// torchAlloc selects an allocator of PyTorch, by the present name of the variable
// and by the former one.
func torchAlloc(conf string) []string {
	return []string{"PYTORCH_ALLOC_CONF=" + conf, "PYTORCH_CUDA_ALLOC_CONF=" + conf}
}

// backends returns all allocators that the limit must hold for.
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
		// XLA uses three quarters of the device's memory, unless it is told to ask the
		// driver for each piece.
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
				continue // the first process would take three quarters; jax-grow is for several
			}
			// The contexts of all programs, and twice that for data.
			limit := 4 * gib
			if n > 1 {
				limit = 16 * gib
			}
			all = append(all, Check{
				Group: "limit", Name: fmt.Sprintf("%s-x%d", b.name, n), Needs: b.needs, Room: limit + gib,
				run: func(t *Trial) error { return t.fill(b, n, limit) },
			})
		}
	}
	return all
}

// fill lets n programs allocate until they are refused, all at once; free all; and
// allocate again.
func (t *Trial) fill(b backend, n int, limit uint64) error {
	if err := t.open(limit); err != nil {
		return err
	}
	if b.pool {
		t.poolSlack = b.piece
	}
	command, err := b.command(t, strconv.FormatUint(b.piece, 10), strconv.FormatUint(2*limit, 10))
	if err != nil {
		return err
	}
	o := t.observeCounts()
	defer o.stop()
	if err := t.startAll(n, b.env, command...); err != nil {
		return err
	}
	if err := t.checkFull(b); err != nil {
		return err
	}
	if err := t.checkNothingLeft(); err != nil {
		return err
	}
	err = t.checkObserved(o, n)
	t.note("at most %s of %s by the driver in %s readings", humanfmt.Bytes(o.mostDriver), humanfmt.Bytes(limit), humanfmt.Count(o.readings))
	t.noteDifference()
	return err
}

// checkFull goes through a backend's steps with all programs at once.
func (t *Trial) checkFull(b backend) error {
	full := false
	err := t.eachStep(func(steps []Step) error {
		all, err := t.compare(steps[0].Name)
		if err != nil || steps[0].Name != "full" {
			return err
		}
		full = true
		return t.checkRefused(b, steps, all)
	})
	if err == nil && !full {
		err = fmt.Errorf("no program came to the step full")
	}
	return err
}

// checkRefused checks that all programs were refused, and that less was free than
// they asked for.
func (t *Trial) checkRefused(b backend, steps []Step, all []account) error {
	for i, step := range steps {
		if refused, err := step.Bytes("refused"); err != nil || refused == 0 {
			return fmt.Errorf("pid %d was never refused", t.programs[i].PID())
		}
	}
	var used uint64
	for _, a := range all {
		used += a.ration
	}
	t.values["left"] = int64(t.limit) - int64(used)
	if used+b.piece+b.spare < t.limit {
		return fmt.Errorf("refused with %s free of %s, though only %s was asked for", humanfmt.Bytes(t.limit-used), humanfmt.Bytes(t.limit), humanfmt.Bytes(b.piece))
	}
	return nil
}
