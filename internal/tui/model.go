package tui

import (
	"slices"
	"time"

	tea "charm.land/bubbletea/v2"

	"ration/internal/job"
)

// Model is what the view shows: the latest sample, and what the user chose.
type Model struct {
	source Source
	every  time.Duration
	look   Look
	zone   *time.Location

	width, height int
	sample        Sample
	known         map[string][]job.Process // by region: all that were seen, so that the gone keep their names
	last          map[string]job.Status    // by region: as it was last read, for what was refused in it
	deaths        []death                  // the newest first

	selected string // region of the job whose processes are shown
	all      bool   // or those of all jobs
	key      sortKey
	reverse  bool
	scroll   int // processes above those shown
	paused   bool
	help     bool
}

// death is a process that ended without leaving, and was found by us.
type death struct {
	at      time.Time
	job     string
	process job.Process
}

// Bounds of what is remembered.
const (
	knownMost  = 4096
	deathsMost = 64
)

// New makes a model that shows nothing yet.
func New(source Source, every time.Duration, look Look) *Model {
	return &Model{source: source, every: every, look: look, zone: time.Local, width: 80, height: 24,
		known: map[string][]job.Process{}, last: map[string]job.Status{}}
}

// tick is time for another sample.
type tick struct{}

// Init waits for the second sample; the first is there.
func (m *Model) Init() tea.Cmd { return m.wait() }

func (m *Model) wait() tea.Cmd { return tea.Tick(m.every, func(time.Time) tea.Msg { return tick{} }) }

// read reads a sample, beside the loop that draws and listens to keys.
func (m *Model) read() tea.Msg { return m.source() }

// Update takes in what happened.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tick:
		if m.paused {
			return m, m.wait()
		}
		return m, m.read
	case Sample:
		if !m.paused { // it was under way
			m.absorb(msg)
		}
		return m, m.wait()
	case tea.KeyPressMsg:
		return m, m.press(msg.String())
	}
	return m, nil
}

// absorb takes in a sample, and remembers of it what the next one may have lost.
func (m *Model) absorb(s Sample) {
	m.sample = s
	for path, status := range m.last {
		if len(status.Refusals) == 0 { // and the rest of it is in the sample, if anywhere
			delete(m.last, path)
		}
	}
	for _, status := range s.Jobs {
		if status.Error == "" {
			m.last[status.Path] = status
		}
		m.remember(status.Path, status.Processes)
		m.remember(status.Path, status.Reaped)
		for _, p := range status.Reaped {
			m.deaths = append([]death{{s.At, status.Title(), p}}, m.deaths[:min(len(m.deaths), deathsMost-1)]...)
		}
	}
	for path := range m.known {
		if _, there := m.last[path]; !there {
			delete(m.known, path)
		}
	}
	if m.at() < 0 && len(s.Jobs) > 0 {
		m.selected, m.scroll = s.Jobs[0].Path, 0
	}
}

func (m *Model) remember(path string, processes []job.Process) {
	known := m.known[path]
	for _, p := range processes {
		p.Holdings = nil
		if !slices.ContainsFunc(known, func(q job.Process) bool { return q.Slot == p.Slot && q.PID == p.PID && q.Joined == p.Joined }) {
			known = append(known, p)
		}
	}
	m.known[path] = known[max(0, len(known)-knownMost):]
}

// at is where the selected job is; less than 0 if it is gone.
func (m *Model) at() int {
	return slices.IndexFunc(m.sample.Jobs, func(s job.Status) bool { return s.Path == m.selected })
}
