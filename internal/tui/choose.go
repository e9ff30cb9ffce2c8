package tui

import (
	"fmt"
	"slices"
	"strings"

	"ration/internal/node"
	"ration/machine"
)

// Sort keys, in the order in which the key s selects them. The first is the default.
var (
	jobSorts     = []string{"busy", "mem", "name", "user", "age", "gpu"}
	processSorts = []string{"mem", "time", "cpu", "rss", "PID", "user", "name", "command", "joined"}
)

// descending reports whether a sort key puts the highest or the latest first.
func descending(sort string) bool {
	return slices.Contains([]string{"busy", "mem", "time", "cpu", "rss", "joined"}, sort)
}

// jobs returns the jobs to show, sorted: unfinished jobs, commands that wait, and unreadable jobs, which need attention;
// only of the chosen user; only those that match the filter.
func (m *Model) jobs() (out []*machine.Job) {
	for i := range m.sample.Jobs {
		j := &m.sample.Jobs[i]
		ended := j.State == machine.Ended && j.Error == ""
		if (!ended || m.showEnded && node.WaitingAt(&m.sample.Machine, j.Path) == nil) && m.chosen(j) {
			out = append(out, j)
		}
	}
	for _, j := range node.WaitingJobs(m.sample.Waiting) {
		if m.chosen(&j) {
			out = append(out, &j)
		}
	}
	order := node.Compare(m.Jobs.Sort)
	slices.SortStableFunc(out, func(a, b *machine.Job) int {
		if m.Jobs.Reverse {
			a, b = b, a
		}
		return order(a, b)
	})
	return out
}

// splitFilter returns the words of the filter that ration ps --filter takes too, as state=running, and the rest, which is
// a text to search for.
func (m *Model) splitFilter() (filters []string, text string) {
	var words []string
	for word := range strings.FieldsSeq(m.filter) {
		if node.CheckFilter(word) == nil {
			filters = append(filters, word)
		} else {
			words = append(words, word)
		}
	}
	return filters, strings.Join(words, " ")
}

// selection returns the chosen user and filters.
func (m *Model) selection() node.Selection {
	filters, _ := m.splitFilter()
	return node.Selection{User: m.user, Filters: append(filters, m.given...)}
}

// searches reports whether the filter has a text to search for.
func (m *Model) searches() bool {
	_, text := m.splitFilter()
	return text != ""
}

// chosen reports whether a job is selected, and itself or one of its processes has the text of the filter.
func (m *Model) chosen(j *machine.Job) bool {
	if !m.selection().Has(j) {
		return false
	}
	return m.matchesJob(j) || slices.ContainsFunc(j.Processes, func(p machine.Process) bool { return m.matchesProcess(m.rowOf(j, &p)) })
}

// choosesOutside reports whether a process in no job is selected: it has none of a job's properties but a user.
func (m *Model) choosesOutside(o machine.Outside) bool { return m.choosesUser(o.UID, o.User) }

// choosesUser reports whether what belongs to a user, and to no job, is selected.
func (m *Model) choosesUser(uid int, name string) bool {
	s := m.selection()
	return len(s.Filters) == 0 && (s.User == "" || node.IsUser(s.User)(uid, name))
}

// matchesJob reports whether a job's name, path, owner, state or command contains the text of the filter.
func (m *Model) matchesJob(j *machine.Job) bool {
	return m.matches(j.Title(), j.Path, j.Owner, j.Launcher, j.State, strings.Join(j.Command, " "))
}

func (m *Model) matchesProcess(r processRow) bool {
	if m.filter == "" {
		return true
	}
	return m.matches(r.Name, r.User, r.State, r.Container, fmt.Sprint(r.PID), fmt.Sprint(r.HostPID), r.command())
}

// matches reports whether one of the texts contains that of the filter, ignoring case.
func (m *Model) matches(texts ...string) bool {
	_, text := m.splitFilter()
	text = strings.ToLower(text)
	return slices.ContainsFunc(texts, func(t string) bool { return strings.Contains(strings.ToLower(t), text) })
}

func (m *Model) jobIDs() (ids []string) {
	for _, j := range m.jobs() {
		ids = append(ids, j.Path)
	}
	return ids
}

// hiddenJobs counts the jobs that are hidden because they have ended.
func (m *Model) hiddenJobs() (n int) {
	for i := range m.sample.Jobs {
		if j := &m.sample.Jobs[i]; !m.showEnded && j.State == machine.Ended && j.Error == "" && m.chosen(j) {
			n++
		}
	}
	return n
}

// shownJob returns the job that keys act on: the job of the page or of the selected row, or nil.
func (m *Model) shownJob() *machine.Job {
	if d, ok := m.page.(*details); ok {
		return m.jobAt(d.last.Path)
	}
	if r := m.selectedProcess(); m.focus == processesTable && r != nil {
		return r.job
	}
	return m.jobAt(m.job.id)
}

// owners returns the users with jobs or processes outside jobs, and those that wait.
func (m *Model) owners() (names []string) {
	for i := range m.sample.Jobs {
		names = append(names, m.sample.Jobs[i].Owner)
	}
	for _, o := range m.sample.Outside {
		names = append(names, o.User)
	}
	for _, d := range m.sample.Denied { // a user without a job, because there was no room
		names = append(names, d.User)
	}
	for i := range m.sample.Waiting {
		names = append(names, m.sample.Waiting[i].Owner)
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == "" })
}
