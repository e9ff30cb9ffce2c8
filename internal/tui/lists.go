package tui

import (
	"fmt"
	"slices"
	"strings"

	tea "charm.land/bubbletea/v2"

	"ration/internal/humanfmt"
	"ration/machine"
)

// list is a page with items, one of which is selected.
type list struct {
	cursor
	key    string                                     // key that opens and closes the page
	ids    func(m *Model) []string                    // ids of its items
	draw   func(m *Model, l *list, height int) []line // the lines of the page
	act    func(m *Model, id string)                  // action of Enter on an item
	toggle bool                                       // act changes the item: space and one click do it too
	hint   hint                                       // hint for act
}

func (l *list) body(m *Model, height int) []line {
	l.settle(l.ids(m))
	return l.draw(m, l, height)
}

func (l *list) press(m *Model, key string) tea.Cmd {
	switch {
	case key == "up":
		l.move(l.ids(m), -1)
	case key == "down":
		l.move(l.ids(m), +1)
	case key == "enter", key == "space" && l.toggle:
		l.settle(l.ids(m))
		l.act(m, l.id)
	case slices.Contains([]string{"esc", "q", "left", l.key}, key):
		m.back()
	default:
		return m.pressShared(key, "space ? h f1 m")
	}
	return nil
}

// choose selects an item. A click on the selected item acts on it.
func (l *list) choose(m *Model, id string) {
	l.settle(l.ids(m))
	selected := l.id == id
	if l.id = id; selected || l.toggle {
		l.act(m, id)
	}
}

func (l *list) hints(m *Model) []hint {
	return []hint{l.hint, {m.theme.arrows, "select"}, {"Esc", "back"}}
}

// userRow is one user, or all users.
type userRow struct {
	name                  string // empty for all users
	jobs, processes       int
	held, limits, outside uint64
	refused               uint64
	waiting               int // commands in a queue
}

// besidePolicy is a variable for tests.
var besidePolicy = machine.BesidePolicy

// users returns a row for all users together, and one for each.
func (m *Model) users() []userRow {
	rows := []userRow{{}}
	for _, name := range m.owners() {
		rows = append(rows, userRow{name: name})
	}
	beside := besidePolicy()
	for r := range rows {
		u := &rows[r]
		for i := range m.sample.Jobs {
			j := &m.sample.Jobs[i]
			if j.State == machine.Ended || u.name != "" && j.Owner != u.name {
				continue
			}
			u.jobs++
			u.processes += j.ProcessCount()
			for _, d := range j.Devices {
				u.held += d.Used
				u.refused += d.Refused
				if d.Total > 0 && d.Limited && !j.LeavesRoom() && !beside(j) { // a limit on devices that no process has seen yet does not count
					u.limits += min(d.Limit, ^u.limits)
				}
			}
		}
		u.refused += machine.DeniedCount(m.sample.Denied, func(d *machine.Denied) bool { return u.name == "" || d.User == u.name })
		for i := range m.sample.Waiting {
			if w := &m.sample.Waiting[i]; !w.Wakes && (u.name == "" || w.Owner == u.name) {
				u.waiting++
			}
		}
		for _, o := range m.sample.Outside {
			if u.name == "" || o.User == u.name {
				u.outside += o.Used
			}
		}
	}
	return rows
}

// newUserList returns the page of users, with the limits and the use of each.
func newUserList() *list {
	const prefix = "user " // so that no id is empty, not even that of all users
	return &list{key: "u", draw: drawUsers, hint: hint{"Enter", "show only this user"},
		ids: func(m *Model) (ids []string) {
			for _, u := range m.users() {
				ids = append(ids, prefix+u.name)
			}
			return ids
		},
		act: func(m *Model, id string) {
			m.user = strings.TrimPrefix(id, prefix)
			m.back()
		}}
}

func drawUsers(m *Model, l *list, height int) []line {
	rows, ids := m.users(), l.ids(m)
	first, last := window(len(rows), height-2, l.at)
	size := func(of func(u userRow) uint64) func(userRow) string {
		return func(u userRow) string { return humanfmt.Short(of(u)) }
	}
	t := table[userRow]{columns: []column[userRow]{
		{title: "USER", text: func(u userRow) string {
			if u.name == "" {
				return "all users"
			}
			return u.name
		}},
		{title: "JOBS", right: true, text: func(u userRow) string { return fmt.Sprint(u.jobs) }},
		{title: "WAITING", right: true, text: func(u userRow) string { return fmt.Sprint(u.waiting) }, needed: func(u userRow) bool { return u.waiting > 0 }},
		{title: "PROC", right: true, drop: 2, text: func(u userRow) string { return fmt.Sprint(u.processes) }},
		{title: "HELD", right: true, text: size(func(u userRow) uint64 { return u.held })},
		{title: "LIMITS", right: true, drop: 1, text: size(func(u userRow) uint64 { return u.limits })},
		{title: "OUTSIDE", right: true, drop: 3, text: size(func(u userRow) uint64 { return u.outside })},
		{title: "REFUSED", right: true, drop: 4, text: func(u userRow) string { return humanfmt.Count(u.refused) }},
	}}
	header, texts := t.render(m, m.width, rows, rows[first:last])
	lines := []line{m.rule("users"), {text: "  " + m.theme.faint.Render(header)}}
	for i, text := range texts {
		lines = append(lines, line{m.mark(first+i == l.at, true) + text, target{itemTarget, ids[first+i]}})
	}
	return lines
}

// newColumnList returns the page that selects the columns of a table.
func newColumnList(m *Model) *list {
	name, settings, titles := "jobs", &m.Jobs, optionalTitles(m.jobColumns())
	if m.focus == processesTable {
		name, settings, titles = "processes", &m.Processes, optionalTitles(m.processColumns())
	}
	return &list{key: "c", toggle: true, hint: hint{"space", "show or hide"},
		ids: func(*Model) []string { return titles },
		act: func(_ *Model, title string) { settings.toggle(title) },
		draw: func(m *Model, l *list, height int) []line {
			lines := []line{m.rule("columns of the " + name + ", where there is room and need for them")}
			first, last := window(len(titles), height-1, l.at)
			for i, title := range titles[first:last] {
				box := "[x] "
				if settings.hides(title) {
					box = "[ ] "
				}
				lines = append(lines, line{m.mark(first+i == l.at, true) + box + title, target{itemTarget, title}})
			}
			return lines
		}}
}

// optionalTitles returns the titles of the columns that can be hidden.
func optionalTitles[R any](columns []column[R]) (titles []string) {
	for _, c := range columns {
		if c.drop > 0 && c.fill == nil {
			titles = append(titles, c.title)
		}
	}
	return titles
}
