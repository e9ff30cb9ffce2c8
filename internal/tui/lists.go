package tui

import (
	"fmt"
	"strings"

	tea "charm.land/bubbletea/v2"

	"ration/internal/humanfmt"
	"ration/machine"
)

// userList is the page with the users: what each of them has and holds.
type userList struct{ cursor }

// userRow is a user, or all of them.
type userRow struct {
	name                  string // empty: all
	jobs, processes       int
	held, limits, outside uint64
	refused               uint64
}

// users returns a row for all users together, and one for each.
func (m *Model) users() []userRow {
	rows := []userRow{{}}
	for _, name := range m.owners() {
		rows = append(rows, userRow{name: name})
	}
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
				if d.Total > 0 && d.Limited { // a limit for devices that nobody has seen is for none yet
					u.limits += min(d.Limit, ^u.limits)
				}
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

func (l *userList) ids(m *Model) (ids []string) {
	for _, u := range m.users() {
		ids = append(ids, "user "+u.name)
	}
	return ids
}

func (l *userList) body(m *Model, height int) []line {
	l.settle(l.ids(m))
	rows := m.users()
	first, last := window(len(rows), height-2, l.at)
	count := func(of func(u userRow) int) func(*Model, userRow) string {
		return func(_ *Model, u userRow) string { return fmt.Sprint(of(u)) }
	}
	size := func(of func(u userRow) uint64) func(*Model, userRow) string {
		return func(_ *Model, u userRow) string { return humanfmt.Short(of(u)) }
	}
	t := table[userRow]{columns: []column[userRow]{
		{title: "USER", text: func(_ *Model, u userRow) string {
			if u.name == "" {
				return "all users"
			}
			return u.name
		}},
		{title: "JOBS", right: true, text: count(func(u userRow) int { return u.jobs })},
		{title: "PROC", right: true, drop: 2, text: count(func(u userRow) int { return u.processes })},
		{title: "HELD", right: true, text: size(func(u userRow) uint64 { return u.held })},
		{title: "LIMITS", right: true, drop: 1, text: size(func(u userRow) uint64 { return u.limits })},
		{title: "OUTSIDE", right: true, drop: 3, text: size(func(u userRow) uint64 { return u.outside })},
		{title: "REFUSED", right: true, drop: 4, text: func(_ *Model, u userRow) string { return humanfmt.Count(u.refused) }},
	}}
	header, texts := t.render(m, m.width, rows, rows[first:last])
	lines := []line{m.rule("users"), {text: "  " + m.theme.faint.Render(header)}}
	for i, text := range texts {
		lines = append(lines, line{m.mark(first+i == l.at, true) + text, target{itemTarget, "user " + rows[first+i].name}})
	}
	return lines
}

func (l *userList) press(m *Model, key string) tea.Cmd {
	switch key {
	case "up":
		l.move(l.ids(m), -1)
	case "down":
		l.move(l.ids(m), +1)
	case "enter":
		l.settle(l.ids(m))
		m.user = strings.TrimPrefix(l.id, "user ")
		m.back()
	case "esc", "q", "u", "left":
		m.back()
	default:
		return m.pressShared(key, "space ? h f1 m")
	}
	return nil
}

func (l *userList) choose(m *Model, id string) {
	if l.settle(l.ids(m)); l.id == id {
		l.press(m, "enter")
		return
	}
	l.id = id
}

func (l *userList) hints(m *Model) []hint {
	return []hint{{"Enter", "show only this user"}, {m.theme.arrows, "select"}, {"Esc", "back"}}
}

// columnList is the page to choose the columns of a table on.
type columnList struct {
	cursor
	of section
}

// titles are the columns that may be left out.
func (l *columnList) titles(m *Model) (titles []string) {
	if l.of == processesTable {
		return optionalTitles(processColumns())
	}
	return optionalTitles(jobColumns())
}

func optionalTitles[R any](columns []column[R]) (titles []string) {
	for _, c := range columns {
		if c.drop > 0 && c.fill == nil {
			titles = append(titles, c.title)
		}
	}
	return titles
}

func (l *columnList) table(m *Model) *TableSettings {
	if l.of == processesTable {
		return &m.Processes
	}
	return &m.Jobs
}

func (l *columnList) body(m *Model, height int) []line {
	titles := l.titles(m)
	l.settle(titles)
	lines := []line{m.rule("columns of the " + map[section]string{jobsTable: "jobs", processesTable: "processes"}[l.of] + ", where there is room and need for them")}
	first, last := window(len(titles), height-1, l.at)
	for i, title := range titles[first:last] {
		box := "[x] "
		if l.table(m).hides(title) {
			box = "[ ] "
		}
		lines = append(lines, line{m.mark(first+i == l.at, true) + box + title, target{itemTarget, title}})
	}
	return lines
}

func (l *columnList) press(m *Model, key string) tea.Cmd {
	switch key {
	case "up":
		l.move(l.titles(m), -1)
	case "down":
		l.move(l.titles(m), +1)
	case "space", "enter":
		l.settle(l.titles(m))
		l.table(m).toggle(l.id)
	case "esc", "q", "c", "left":
		m.back()
	default:
		return m.pressShared(key, "? h f1 m")
	}
	return nil
}

func (l *columnList) choose(m *Model, id string) {
	l.id = id
	l.table(m).toggle(id)
}

func (l *columnList) hints(m *Model) []hint {
	return []hint{{"space", "show or hide"}, {m.theme.arrows, "select"}, {"Esc", "back"}}
}
