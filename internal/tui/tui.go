// Package tui is the live view of jobs on a terminal, `ration top`.
//
// A [Source] reads the regions and gives a [Sample]; a [Model] holds the latest
// one and what the user chose; a frame is a function of the model alone. So every
// frame can be tested without a terminal, a region or a clock, and the program
// that ties them together is a few lines.
package tui

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"
)

// Terminal is what is known of where the view is shown.
type Terminal struct {
	In      io.Reader
	Out     io.Writer
	Environ []string
}

// running is the program that has the terminal.
var running struct {
	sync.Mutex
	program *tea.Program
	ended   chan struct{}
}

// Run shows what source reads until the user has seen enough.
func Run(source Source, every time.Duration, t Terminal) error {
	m := New(source, every, LookOf(t.Environ))
	m.absorb(source()) // so that the first frame is a whole one
	p := tea.NewProgram(m, tea.WithInput(t.In), tea.WithOutput(t.Out), tea.WithEnvironment(t.Environ), tea.WithoutSignalHandler())
	ended := make(chan struct{})
	running.Lock()
	running.program, running.ended = p, ended
	running.Unlock()
	defer close(ended)

	_, err := p.Run()
	if errors.Is(err, tea.ErrInterrupted) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("drawing on the terminal: %w (ration ps --watch needs less of it)", err)
	}
	return nil
}

// Sweep gives the terminal back as it was, for a program that is about to end in
// the middle of its work.
func Sweep() {
	running.Lock()
	p, ended := running.program, running.ended
	running.Unlock()
	if p == nil {
		return
	}
	go p.Quit() // waits where nobody reads messages any more
	select {
	case <-ended:
	case <-time.After(time.Second):
		p.Kill()
	}
}
