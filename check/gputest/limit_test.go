package gputest

import (
	"fmt"
	"strconv"
	"testing"

	"ration/check/expect"
	"ration/internal/humanfmt"
)

// backend is an allocator, and a program that uses it.
type backend struct {
	name  string
	needs []string
	env   []string
	// program and mode are a program that allocates piece after piece, until it is refused
	// or has enough.
	program, mode string
	// spare is how many bytes may be free at the refusal beyond a piece: allocators
	// ask the driver for more than they need.
	spare uint64
	// pool is set if the program's pool may keep the memory of a refused request for
	// a while.
	pool bool
}

// piece is how many bytes the programs of backends allocate at once.
const piece = 64 * mib

// The programs of backends, and the files that they are.
const (
	calls    = "allocpaths" // in C, by the driver's own calls
	compiled = "plain"      // in CUDA, which nvcc compiles
	script   = "fill"       // in Python
)

// command returns the command of the backend's program, which has enough with most bytes.
func (b backend) command(t *trial, most uint64) []string {
	args := []string{b.mode, strconv.FormatUint(piece, 10), strconv.FormatUint(most, 10)}
	switch b.program {
	case calls:
		return t.native(b.program, args...)
	case compiled:
		return append([]string{t.compiled(b.program)}, args...)
	}
	return t.script(b.program, args...)
}

// torchAlloc selects an allocator of PyTorch, by the present name of the variable
// and by the former one.
func torchAlloc(conf string) []string {
	return []string{"PYTORCH_ALLOC_CONF=" + conf, "PYTORCH_CUDA_ALLOC_CONF=" + conf}
}

// backends are all allocators that the limit must hold for.
var backends = []backend{
	{name: "driver", program: calls, mode: "linear"},
	{name: "driver-pool", program: calls, mode: "pool", spare: 64 * mib, pool: true},
	{name: "driver-vmm", program: calls, mode: "vmm"},
	{name: "nvcc", needs: []string{nvcc}, program: compiled, mode: "malloc"},
	{name: "nvcc-async", needs: []string{nvcc}, program: compiled, mode: "async", spare: 64 * mib, pool: true},
	{name: "torch", needs: []string{torch}, program: script, mode: "torch"},
	{name: "torch-expandable", needs: []string{torch}, env: torchAlloc("expandable_segments:True"), program: script, mode: "torch"},
	{name: "torch-async", needs: []string{torch}, env: torchAlloc("backend:cudaMallocAsync"), program: script, mode: "torch", spare: 64 * mib, pool: true},
	{name: "triton", needs: []string{torch, triton}, program: script, mode: "triton"},
	{name: "cupy", needs: []string{cupy}, program: script, mode: "cupy"},
	{name: "cupy-async", needs: []string{cupy}, program: script, mode: "cupy-async", spare: 64 * mib, pool: true},
	// XLA uses three quarters of the device's memory, unless it is told to ask the
	// driver for each piece.
	{name: "jax", needs: []string{jax}, program: script, mode: "jax", spare: gib},
	{name: "jax-grow", needs: []string{jax}, env: []string{"XLA_PYTHON_CLIENT_PREALLOCATE=false"}, program: script, mode: "jax", spare: gib},
	{name: "jax-platform", needs: []string{jax}, env: []string{"XLA_PYTHON_CLIENT_ALLOCATOR=platform"}, program: script, mode: "jax", spare: 64 * mib},
	{name: "jax-async", needs: []string{jax}, env: []string{"XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async", "XLA_PYTHON_CLIENT_PREALLOCATE=false"}, program: script, mode: "jax", spare: gib, pool: true},
}

// TestLimit checks that no allocator gets more than the limit, with one process and with
// eight.
func TestLimit(t *testing.T) {
	for _, b := range backends {
		for _, c := range []struct {
			n     int
			limit uint64 // the contexts of all programs, and twice that for data
		}{{1, 4 * gib}, {8, 16 * gib}} {
			if c.n > 1 && b.name == "jax" {
				continue // the first process would take three quarters; jax-grow is for several
			}
			check(t, fmt.Sprintf("%s-x%d", b.name, c.n), c.limit+gib, b.needs, func(t *trial) {
				if b.mode == "vmm" {
					c.limit = short(t, c.limit/2, c.limit) // the stand-in takes it from the host, which is slow
				}
				t.fill(b, c.n, c.limit)
			})
		}
	}
}

// fill lets n programs allocate until they are refused, all at once; free all; and
// allocate again.
func (t *trial) fill(b backend, n int, limit uint64) {
	t.open(limit)
	if b.pool {
		t.poolSlack = piece
	}
	o := t.observeCounts()
	defer o.stop()
	t.startAll(n, b.env, b.command(t, 2*limit)...)
	full := false
	t.eachStep(func(steps []step) {
		all := t.compare(steps[0].name)
		if steps[0].name == "full" {
			full = true
			t.checkRefused(b, steps, all)
		}
	})
	expect.Must(t, full, "no program came to the step full")
	t.checkNothingLeft()
	t.checkObserved(o, n)
	t.note("%s", o.observed(limit))
	t.noteDifference()
}

// checkRefused checks that all programs were refused, and that less was free than
// they asked for.
func (t *trial) checkRefused(b backend, steps []step, all []account) {
	for i, s := range steps {
		expect.Must(t, s.bytes(t, "refused") != 0, "pid", t.programs[i].PID(), "was never refused")
	}
	var used uint64
	for _, a := range all {
		used += a.ration
	}
	expect.Must(t, used+piece+b.spare >= t.limit,
		"refused with", humanfmt.Bytes(t.limit-used), "free of", humanfmt.Bytes(t.limit), "though only", humanfmt.Bytes(piece), "was asked for")
}
