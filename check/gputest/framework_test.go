package gputest

import (
	"net"
	"strconv"
	"testing"

	"ration/check/expect"
)

// TestProgram runs programs as users write them. Each does something that is
// difficult for a preloaded library.
func TestProgram(t *testing.T) {
	for _, c := range []struct {
		name    string
		command []string
		env     []string
	}{
		{"dataloader-workers", []string{"workers"}, nil},
		{"cuda-graphs", []string{"graphs"}, nil},
		{"cuda-graphs-async", []string{"graphs"}, torchAlloc("backend:cudaMallocAsync")},
		{"compile", []string{"compiled"}, nil},
		{"compile-reduce-overhead", []string{"compiled", "reduce-overhead"}, nil},
		{"tensor-ipc", []string{"share"}, nil},
	} {
		check(t, c.name, 9*gib, []string{torch}, func(t *trial) {
			t.env = c.env
			t.runSteps(8*gib, t.script(c.command[0], c.command[1:]...))
		})
	}
	// Programs of several processes, of which only one prints steps.
	check(t, "mpi-x8", 17*gib, []string{torch, openMPI}, func(t *trial) {
		t.runSteps(16*gib, append([]string{"mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "8"}, t.script("rank", freePorts(t, 1)...)...))
	})
	check(t, "torchrun-x4", 9*gib, []string{torch, "torchrun"}, func(t *trial) {
		free := freePorts(t, 2)
		t.runSteps(8*gib, append([]string{"torchrun", "--nproc-per-node", "4", "--master-port", free[0], "--no-python"}, t.script("rank", free[1])...))
	})
}

// TestNCCL runs programs of one rank and of two, which NCCL takes for two hosts: it refuses two ranks of one
// host on a device.
func TestNCCL(t *testing.T) {
	for name, modes := range map[string][]string{
		"plain": nil, "registered": {"registered"}, "graphs": {"graphs"}, "registered-graphs": {"registered", "graphs"},
		"two": {"two"}, "two-registered": {"two", "registered"},
	} {
		check(t, name, 9*gib, []string{torch}, func(t *trial) {
			t.runSteps(8*gib, t.script("nccl", append(freePorts(t, 1), modes...)...))
		})
	}
}

// freePorts returns n TCP ports that were not in use a moment ago.
func freePorts(t testing.TB, n int) (free []string) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		expect.OK(t, err)
		defer l.Close() // after all were found, so that they differ
		free = append(free, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	}
	return free
}
