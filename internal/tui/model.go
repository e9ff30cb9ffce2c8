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
	actions  Actions       // nil: nothing may be changed
	interval time.Duration // between samples
	theme    Theme
	zone     *time.Location
	Settings

	width, height int // of the terminal, in cells
	sample        Sample
	known         map[string][]machine.Process // by path of the region: all that were ever read, for the names of ended processes
	lastRead      map[string]machine.Job       // by path of the region: the last that could be read, for its refusals and deaths
	history       map[onDevice][]point

	page    page   // what the body shows
	dialog  dialog // a prompt or a question at the bottom, or nil
	message message

	filter    string  // see matches
	user      string  // whose jobs are shown; empty: all users'
	showEnded bool    // also jobs that have ended
	allJobs   bool    // the processes of all jobs, not of the selected one
	focus     section // that the arrow keys move in
	job       cursor  // by path of the region
	process   cursor  // by processRow.id
	paused    bool
}

// section is one of the tables of the overview.
type section int

const (
	jobsTable section = iota
	processesTable
)

// message is shown in the last line until a key is pressed.
type message struct {
	text string
	bad  bool
}

// maxKnown bounds the processes of a job that are remembered.
const maxKnown = 4096

// New returns a model without a sample.
func New(source Source, actions Actions, interval time.Duration, theme Theme, settings Settings) *Model {
	return &Model{source: source, actions: actions, interval: interval, theme: theme, zone: time.Local, Settings: settings.valid(), width: 80, height: 24,
		known: map[string][]machine.Process{}, lastRead: map[string]machine.Job{}, history: map[onDevice][]point{}, page: overview{}, allJobs: true}
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

// Update handles a message of the terminal, a tick, a sample, or the result of an action.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	cmd := m.handle(msg)
	m.settle()
	return m, cmd
}

func (m *Model) handle(msg tea.Msg) tea.Cmd {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tick:
		if m.paused {
			return m.wait()
		}
		return m.readSample
	case Sample:
		if !m.paused { // since the sample was begun
			m.setSample(msg)
		}
		return m.wait()
	case tea.KeyPressMsg:
		return m.press(msg)
	case tea.PasteMsg:
		if p, ok := m.dialog.(pasted); ok {
			p.paste(m, msg.Content)
		}
	case tea.MouseWheelMsg:
		return m.wheel(msg)
	case tea.MouseClickMsg:
		return m.click(msg)
	case limitSet:
		m.limitIsSet(msg)
	case processFound:
		m.askSignal(msg)
	case signalSent:
		m.message = message(msg)
	}
	return nil
}

// setSample replaces the sample, and remembers what the next one may lack: names of processes
// that end, and refusals and deaths of jobs that end.
func (m *Model) setSample(s Sample) {
	m.sample = s
	if s.Past != nil {
		m.addPast(s.Past, s)
	}
	m.addHistory(s)
	for path, status := range m.lastRead {
		if len(status.Refusals)+len(status.Deaths) == 0 { // the rest of it is only needed if it is in the sample
			delete(m.lastRead, path)
		}
	}
	for _, status := range s.Jobs {
		if status.Error == "" {
			m.lastRead[status.Path] = status
		}
		m.remember(status.Path, status.Processes)
		m.remember(status.Path, status.Reaped)
	}
	for path := range m.known {
		if _, found := m.lastRead[path]; !found {
			delete(m.known, path)
		}
	}
	m.settle()
}

func (m *Model) remember(path string, processes []machine.Process) {
	known := m.known[path]
	for _, p := range processes {
		p.Holdings = nil
		if !slices.ContainsFunc(known, func(q machine.Process) bool { return q.Slot == p.Slot && q.PID == p.PID && q.Joined.Equal(p.Joined) }) {
			known = append(known, p)
		}
	}
	m.known[path] = known[max(0, len(known)-maxKnown):]
}

// settle puts the cursors on rows that there are.
func (m *Model) settle() {
	m.job.settle(m.jobIDs())
	if _, is := m.page.(overview); is && m.focus == jobsTable {
		m.process = cursor{} // the first of them, until the user goes there
	}
	m.process.settle(m.processIDs())
}

// jobAt returns the job of the sample with that region, or nil.
func (m *Model) jobAt(path string) *machine.Job {
	i := slices.IndexFunc(m.sample.Jobs, func(j machine.Job) bool { return j.Path == path })
	if i < 0 {
		return nil
	}
	return &m.sample.Jobs[i]
}

// cursor is a place in a list whose items come, go and change places.
type cursor struct {
	id string // of the item; empty in an empty list
	at int    // where it was last
}

// settle follows the item to where it is now, or stays at the place that it had.
func (c *cursor) settle(ids []string) {
	if i := slices.Index(ids, c.id); i >= 0 {
		c.at = i
		return
	}
	c.id, c.at = "", max(0, min(c.at, len(ids)-1))
	if len(ids) > 0 {
		c.id = ids[c.at]
	}
}

// move goes so many items further, and stays within the list.
func (c *cursor) move(ids []string, by int) {
	c.settle(ids)
	if len(ids) > 0 {
		c.at = max(0, min(c.at+by, len(ids)-1))
		c.id = ids[c.at]
	}
}
