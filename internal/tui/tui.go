// Package tui shows jobs on a terminal as they change: `ration top`.
//
// A [Source] reads the jobs and returns a [Sample]; a [Model] has the latest one and
// what the user has chosen; a frame is a function of the model alone. So every frame
// can be tested without a terminal, a job or a clock.
package tui

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"
)

// Terminal is the terminal to draw on.
type Terminal struct {
	In      io.Reader
	Out     io.Writer
	Environ []string
}

// running is the program that draws on the terminal, for RestoreTerminal.
var running struct {
	sync.Mutex
	program *tea.Program  // nil before Run
	ended   chan struct{} // closed when Run returns
}

// Run shows what source reads, until the user quits.
func Run(source Source, interval time.Duration, t Terminal) error {
	m := New(source, interval, NewTheme(t.Environ))
	m.setSample(source()) // so that the first frame has one
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

// RestoreTerminal ends Run and leaves the terminal as it was. It is for a program that
// is interrupted.
func RestoreTerminal() {
	running.Lock()
	p, ended := running.program, running.ended
	running.Unlock()
	if p == nil {
		return
	}
	go p.Quit() // blocks if the program reads no messages any more
	select {
	case <-ended:
	case <-time.After(time.Second):
		p.Kill()
	}
}
