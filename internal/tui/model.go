package tui

import (
	"slices"
	"time"

	tea "charm.land/bubbletea/v2"

	"ration/internal/node"
	"ration/machine"
)

// Model is the state that a frame shows: the latest sample, and the user's choices.
type Model struct {
	source   Source
	actions  Actions       // nil if nothing may be changed
	interval time.Duration // between samples
	theme    Theme
	zone     *time.Location
	Settings

	width, height int // of the terminal, in cells
	sample        Sample
	known         map[string][]machine.Process // by path of the region: all processes that were ever read, for the names of ended ones
	lastRead      map[string]machine.Job       // by path of the region: the last readable state, for its refusals and deaths
	history       map[onDevice][]point
	host          hostUse
	usage         UsageReader // nil if there is none

	page    page   // what the body shows
	dialog  dialog // prompt or question at the bottom, or nil
	message message

	filter    string   // see splitFilter
	given     []string // more filters, from the command line
	user      string   // show only this user's jobs; empty for all users
	showEnded bool     // show ended jobs too
	allJobs   bool     // show the processes of all jobs, not only of the selected one
	focus     section  // the section that the arrow keys move in
	job       cursor   // by path of the region
	process   cursor   // by processRow.id
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

// tick asks for another sample.
type tick struct{}

// Init waits for the second sample; Run has read the first.
func (m *Model) Init() tea.Cmd { return m.wait() }

func (m *Model) wait() tea.Cmd {
	return tea.Tick(m.interval, func(time.Time) tea.Msg { return tick{} })
}

// readSample runs in a goroutine of its own, so that drawing and keys do not wait for it.
func (m *Model) readSample() tea.Msg { return m.source() }

// Update handles a message of the terminal, a tick, a sample, or the result of an action.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	cmd := m.handle(msg)
	m.settle()
	return m, tea.Batch(cmd, m.readHost())
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
		if !m.paused { // paused after the sample was started
			m.setSample(msg)
		}
		return tea.Batch(m.wait(), m.refreshUsage())
	case usageRead:
		m.setUsage(msg)
	case hostRead:
		m.setHost(msg)
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

// setSample replaces the sample. It remembers data that the next sample may lack: names of ended
// processes, and refusals and deaths of removed jobs.
func (m *Model) setSample(s Sample) {
	m.sample, m.host.due = s, true
	if s.Past != nil {
		m.addPast(s.Past, s)
	}
	m.addHistory(s)
	for path, status := range m.lastRead {
		if len(status.Refusals)+len(status.Deaths) == 0 { // keep only jobs with refusals or deaths
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

// settle moves the cursors to rows that exist.
func (m *Model) settle() {
	m.job.settle(m.jobIDs())
	if _, is := m.page.(overview); is && m.focus == jobsTable {
		m.process = cursor{} // the first row, until the user moves there
	}
	m.process.settle(m.processIDs())
}

// jobAt returns the job of the sample with that region, or nil.
func (m *Model) jobAt(path string) *machine.Job {
	for _, j := range node.WaitingJobs(m.sample.Waiting) {
		if j.Path == path && path != "" {
			return &j
		}
	}
	i := slices.IndexFunc(m.sample.Jobs, func(j machine.Job) bool { return j.Path == path })
	if i < 0 {
		return nil
	}
	return &m.sample.Jobs[i]
}

// cursor is a position in a list whose items come, go and change places.
type cursor struct {
	id string // id of the item; empty if the list is empty
	at int    // its last index
}

// settle follows the item to its new index or, if it is gone, stays at the old index.
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

// move moves by items, and stays within the list.
func (c *cursor) move(ids []string, by int) {
	c.settle(ids)
	if len(ids) > 0 {
		c.at = max(0, min(c.at+by, len(ids)-1))
		c.id = ids[c.at]
	}
}
