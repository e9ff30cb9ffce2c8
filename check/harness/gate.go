package harness

import (
	"os"
	"os/exec"
	"testing"
)

// Gate lets many workers go on at one moment: each is ordered to wait at it, and all
// go on when it opens.
type Gate struct{ in, out *os.File }

// NewGate makes a closed gate.
func NewGate(t testing.TB) *Gate {
	t.Helper()
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	g := &Gate{in, out}
	t.Cleanup(func() { _, _ = g.in.Close(), g.out.Close() })
	return g
}

// At gives a worker the gate. The order "gate" has it wait there.
func (g *Gate) At() Option {
	return func(c *exec.Cmd) { c.ExtraFiles = []*os.File{g.in} }
}

// Open opens the gate.
func (g *Gate) Open() { _ = g.out.Close() }
