package harness

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Gate releases many processes at the same moment. It is a pipe that the processes inherit and read
// from. Opening the gate closes the pipe, which wakes all of them at once.
type Gate struct{ in, out *os.File }

// NewGate makes a closed gate.
func NewGate() (*Gate, error) {
	in, out, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("making a gate: %w", err)
	}
	return &Gate{in, out}, nil
}

// File returns the end that processes inherit, in ExtraFiles of their command.
func (g *Gate) File() *os.File { return g.in }

// Open opens the gate: all waiting processes continue, and none waits there again.
func (g *Gate) Open() { _ = g.out.Close() }

// Close releases the gate.
func (g *Gate) Close() { _, _ = g.in.Close(), g.out.Close() }

// WaitAtGate returns when the gate with this index in ExtraFiles is open. It blocks in the kernel,
// on a thread of its own, so that the Go scheduler adds no delay.
func WaitAtGate(index int) {
	const firstExtraFile = 3
	var b [1]byte
	for {
		n, err := unix.Read(firstExtraFile+index, b[:])
		if n == 0 && err == nil || err != nil && err != unix.EINTR {
			return
		}
	}
}
