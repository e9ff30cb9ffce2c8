// Package tui shows jobs on a terminal as they change: `ration top`.
//
// A [Source] reads the machine and returns a [Sample]. A [Model] has the latest sample and the
// user's choices. Its Update handles a key, a click or a sample. A frame depends on the model
// alone, so every frame can be tested without a terminal, a job or a clock. Changes to jobs and
// processes go through [Actions].
package tui

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"

	"ration/internal/node"
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

// Run shows the samples of source until the user quits, at first the selected jobs. It returns the settings as they are
// then; a selected order is not kept.
func Run(source Source, host HostReader, accounts UsageReader, actions Actions, interval time.Duration, selected node.Selection, settings Settings, t Terminal) (Settings, error) {
	m := New(source, actions, interval, NewTheme(t.Environ), settings)
	m.host.reader, m.usage, m.user, m.given = host, accounts, selected.User, selected.Filters
	m.Jobs.Sort = cmp.Or(selected.Sort, m.Jobs.Sort)
	m.setSample(source()) // so that the first frame has a sample
	p := tea.NewProgram(m, tea.WithInput(t.In), tea.WithOutput(t.Out), tea.WithEnvironment(t.Environ), tea.WithoutSignalHandler())
	ended := make(chan struct{})
	running.Lock()
	running.program, running.ended = p, ended
	running.Unlock()
	defer close(ended)

	_, err := p.Run()
	if errors.Is(err, tea.ErrInterrupted) {
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("drawing on the terminal: %w (ration ps --watch needs less of it)", err)
	}
	if m.Jobs.Sort == selected.Sort {
		m.Jobs = settings.valid().Jobs
	}
	return m.Settings, err
}

// RestoreTerminal ends Run and restores the terminal. It is for a program that is interrupted.
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
