package tui

import (
	"slices"
	"strings"

	tea "charm.land/bubbletea/v2"
)

// binding is a group of keys and their action. Help lists all of them.
type binding struct {
	keys []string
	show string // name in help; empty to use keys
	help string
	do   func(m *Model) tea.Cmd
}

func (b binding) has(key string) bool { return slices.Contains(b.keys, key) }

// overviewKeys are the keys of the overview. The details page also has those that act on a job or a
// process, and those that affect only the display.
func overviewKeys() []binding {
	change := func(f func(m *Model)) func(*Model) tea.Cmd {
		return func(m *Model) tea.Cmd { f(m); return nil }
	}
	open := func(p func(m *Model) page) func(*Model) tea.Cmd {
		return change(func(m *Model) { m.page = p(m) })
	}
	return []binding{
		{[]string{"up"}, "", "", change(func(m *Model) { m.move(-1) })},
		{[]string{"down", "j"}, "up, down", "select another job or process", change(func(m *Model) { m.move(+1) })},
		{[]string{"pgup", "ctrl+b"}, "", "", change(func(m *Model) { m.move(-m.pageSize()) })},
		{[]string{"pgdown", "ctrl+f"}, "PgUp, PgDn", "the same, by a page", change(func(m *Model) { m.move(+m.pageSize()) })},
		{[]string{"home"}, "", "", change(func(m *Model) { m.move(-1 << 30) })},
		{[]string{"end", "G"}, "Home, End", "the first, the last", change(func(m *Model) { m.move(1 << 30) })},
		{[]string{"tab", "shift+tab"}, "tab", "go to the processes, and back to the jobs", change(func(m *Model) { m.focus = 1 - m.focus })},
		{[]string{"enter"}, "Enter", "all about the job", open(func(m *Model) page { return m.newDetails() })},
		{[]string{"/"}, "", "show only what has a text in its name, user or command", change(func(m *Model) { m.dialog = &filterPrompt{} })},
		{[]string{"u"}, "", "users, with what each holds; Enter shows one only", open(func(m *Model) page { return newUserList() })},
		{[]string{"esc"}, "Esc", "go back; show everything again", change((*Model).showAll)},
		{[]string{"e"}, "", "show ended jobs too, or no longer", change(func(m *Model) { m.showEnded = !m.showEnded })},
		{[]string{"a"}, "", "show processes of all jobs, or of one", change(func(m *Model) { m.allJobs = !m.allJobs })},
		{[]string{"t"}, "", "show processes as a tree, or no longer", change(func(m *Model) { m.Tree = !m.Tree })},
		{[]string{"s"}, "", "sort the table with the mark by another key", change(func(m *Model) { t, keys := m.focused(); t.nextSort(keys) })},
		{[]string{"r"}, "", "reverse its order", change(func(m *Model) { t, _ := m.focused(); t.Reverse = !t.Reverse })},
		{[]string{"c"}, "", "choose its columns", open(func(m *Model) page { return newColumnList(m) })},
		{[]string{"l"}, "", "change the limits of the job", (*Model).askLimit},
		{[]string{"x"}, "", "end the job: all its processes, after a question", func(m *Model) tea.Cmd { return m.askJob(endJob) }},
		{[]string{"k"}, "", "send a signal to the process or, among jobs, to all of the job's", (*Model).pressSignal},
		{[]string{"K"}, "", "send a signal to all processes of the job", func(m *Model) tea.Cmd { return m.askJob(0) }},
		{[]string{"g"}, "", "all GPUs, with all that is known of them", open(func(m *Model) page { return &textPage{text: (*Model).gpusText} })},
		{[]string{"d"}, "", "who used the GPUs in a day and a week", (*Model).openUsage},
		{[]string{"f"}, "", "findings: what should be known of the machine", open(func(m *Model) page { return &textPage{text: (*Model).findingsText} })},
		{[]string{"m"}, "", "leave the mouse to the terminal, or take it back", change(func(m *Model) { m.NoMouse = !m.NoMouse })},
		{[]string{"space"}, "", "pause, and resume", change(func(m *Model) { m.paused = !m.paused })},
		{[]string{"?", "h", "f1"}, "?", "this page", open(func(m *Model) page { return &textPage{text: (*Model).helpText} })},
		{[]string{"q"}, "", "quit", func(*Model) tea.Cmd { return tea.Quit }},
	}
}

// press handles a key, by the dialog if there is one, otherwise by the page.
func (m *Model) press(msg tea.KeyPressMsg) tea.Cmd {
	switch key := msg.String(); {
	case key == "ctrl+c":
		return tea.Quit
	case key == "ctrl+z":
		return tea.Suspend
	case m.dialog != nil:
		return m.dialog.press(m, msg)
	default:
		m.message = message{}
		return m.page.press(m, key)
	}
}

// pressShared handles a key of another page as the overview does, if keys contains it.
func (m *Model) pressShared(key string, keys string) tea.Cmd {
	if slices.Contains(strings.Fields(keys), key) {
		return overview{}.press(m, key)
	}
	return nil
}

// back returns to the overview.
func (m *Model) back() { m.page = overview{} }

// showAll removes the filters.
func (m *Model) showAll() { m.filter, m.user, m.given = "", "", nil }

// focused returns the table that has the focus, and its sort keys.
func (m *Model) focused() (*TableSettings, []string) {
	if _, ok := m.page.(*details); ok || m.focus == processesTable {
		return &m.Processes, processSorts
	}
	return &m.Jobs, jobSorts
}

// move moves the cursor of the table with the focus. Moving to a job shows its processes.
func (m *Model) move(by int) {
	if m.focus == processesTable {
		m.process.move(m.processIDs(), by)
		return
	}
	m.job.move(m.jobIDs(), by)
	m.allJobs = false
}

// pageSize is how many rows of the table with the focus are shown.
func (m *Model) pageSize() int {
	h := m.layout(m.height - 2)
	if m.focus == processesTable {
		return max(1, h.processes-2)
	}
	return max(1, h.jobs-1)
}

// wheel moves as the arrow keys do.
func (m *Model) wheel(msg tea.MouseWheelMsg) tea.Cmd {
	key := map[tea.MouseButton]string{tea.MouseWheelUp: "up", tea.MouseWheelDown: "down"}[msg.Button]
	if key == "" || m.dialog != nil {
		return nil
	}
	return m.page.press(m, key)
}

// click selects the row at the pointer. A click on the selected job opens its details.
func (m *Model) click(msg tea.MouseClickMsg) tea.Cmd {
	lines := m.lines()
	if m.dialog != nil || msg.Button != tea.MouseLeft || msg.Y < 0 || msg.Y >= len(lines) {
		return nil
	}
	switch t := lines[msg.Y].target; t.kind {
	case jobTarget:
		if m.focus == jobsTable && m.job.id == t.id && !m.allJobs {
			return m.page.press(m, "enter")
		}
		m.focus, m.job.id, m.allJobs = jobsTable, t.id, false
	case processTarget:
		m.focus, m.process.id = processesTable, t.id
	case itemTarget:
		m.page.choose(m, t.id)
	}
	return nil
}
