package tui

import (
	"slices"
	"time"

	tea "charm.land/bubbletea/v2"

	"ration/machine"
)

// Model is what a frame shows: the latest sample, and what the user has chosen.
type Model struct {
	source   Source
	interval time.Duration // between samples
	theme    Theme
	zone     *time.Location

	width, height int // of the terminal, in cells
	sample        Sample
	known         map[string][]machine.Process // by path of the region: all that were ever read, for the names of ended processes
	lastRead      map[string]machine.Job       // by path of the region: the last that could be read, for its refusals
	deaths        []death                      // the newest first

	selected string // path of the region of the job whose processes are shown
	allJobs  bool   // show the processes of all jobs instead
	sortBy   sortKey
	reverse  bool
	scroll   int // processes above the first that is shown
	paused   bool
	showHelp bool
}

// death is a process that ended without leaving, and that a read has reaped.
type death struct {
	time    time.Time
	job     string // title
	process machine.Process
}

// Bounds of what is remembered.
const (
	maxKnown  = 4096 // processes of a job
	maxDeaths = 64
)

// New returns a model without a sample.
func New(source Source, interval time.Duration, theme Theme) *Model {
	return &Model{source: source, interval: interval, theme: theme, zone: time.Local, width: 80, height: 24,
		known: map[string][]machine.Process{}, lastRead: map[string]machine.Job{}}
}

// tick says that it is time for another sample.
type tick struct{}

// Init waits for the second sample; Run reads the first.
func (m *Model) Init() tea.Cmd { return m.wait() }

func (m *Model) wait() tea.Cmd {
	return tea.Tick(m.interval, func(time.Time) tea.Msg { return tick{} })
}

// readSample runs in a goroutine of its own: drawing and keys do not wait for it.
func (m *Model) readSample() tea.Msg { return m.source() }

// Update handles a message of the terminal, a tick or a sample.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tick:
		if m.paused {
			return m, m.wait()
		}
		return m, m.readSample
	case Sample:
		if !m.paused { // since the sample was begun
			m.setSample(msg)
		}
		return m, m.wait()
	case tea.KeyPressMsg:
		return m, m.pressKey(msg.String())
	}
	return m, nil
}

// setSample replaces the sample, and remembers what the next one may lack: names of
// processes that end, refusals of jobs that end, and deaths.
func (m *Model) setSample(s Sample) {
	m.sample = s
	for path, status := range m.lastRead {
		if len(status.Refusals) == 0 { // the rest of it is only needed if it is in the sample
			delete(m.lastRead, path)
		}
	}
	for _, status := range s.Jobs {
		if status.Error == "" {
			m.lastRead[status.Path] = status
		}
		m.remember(status.Path, status.Processes)
		m.remember(status.Path, status.Reaped)
		for _, p := range status.Reaped {
			m.deaths = append([]death{{s.Time, status.Title(), p}}, m.deaths[:min(len(m.deaths), maxDeaths-1)]...)
		}
	}
	for path := range m.known {
		if _, found := m.lastRead[path]; !found {
			delete(m.known, path)
		}
	}
	if m.selectedIndex() < 0 && len(s.Jobs) > 0 {
		m.selected, m.scroll = s.Jobs[0].Path, 0
	}
}

func (m *Model) remember(path string, processes []machine.Process) {
	known := m.known[path]
	for _, p := range processes {
		p.Holdings = nil
		if !slices.ContainsFunc(known, func(q machine.Process) bool { return q.Slot == p.Slot && q.PID == p.PID && q.Joined == p.Joined }) {
			known = append(known, p)
		}
	}
	m.known[path] = known[max(0, len(known)-maxKnown):]
}

// selectedIndex returns the index of the selected job in the sample, or -1.
func (m *Model) selectedIndex() int {
	return slices.IndexFunc(m.sample.Jobs, func(s machine.Job) bool { return s.Path == m.selected })
}
