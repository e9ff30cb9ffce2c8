package tui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"ration/machine"
)

// Sort keys, in the order in which the key s selects them. The first is the default.
var (
	jobSorts     = []string{"busy", "bytes", "name", "user", "age"}
	processSorts = []string{"bytes", "time", "PID", "user", "name", "joined"}
)

// descending reports whether a sort key puts the highest or the latest first.
func descending(sort string) bool {
	return slices.Contains([]string{"busy", "bytes", "time", "joined", "age"}, sort)
}

// jobs returns the jobs to show, sorted: unfinished jobs and unreadable jobs, which need attention;
// only of the chosen user; only those that match the filter.
func (m *Model) jobs() (out []*machine.Job) {
	for i := range m.sample.Jobs {
		j := &m.sample.Jobs[i]
		ended := j.State == machine.Ended && j.Error == ""
		if (!ended || m.showEnded) && m.chosen(j) {
			out = append(out, j)
		}
	}
	slices.SortStableFunc(out, func(a, b *machine.Job) int {
		order := 0
		switch m.Jobs.Sort {
		case "busy":
			order = cmp.Or(cmp.Compare(stateOrder(a), stateOrder(b)), cmp.Compare(busy(b), busy(a)), cmp.Compare(heldBy(b), heldBy(a)))
		case "bytes":
			order = cmp.Compare(heldBy(b), heldBy(a))
		case "user":
			order = cmp.Compare(a.Owner, b.Owner)
		case "age":
			order = b.Created.Compare(a.Created)
		}
		order = cmp.Or(order, cmp.Compare(a.Title(), b.Title()), cmp.Compare(a.Path, b.Path))
		if m.Jobs.Reverse {
			return -order
		}
		return order
	})
	return out
}

// stateOrder sorts running jobs first and ended jobs last.
func stateOrder(j *machine.Job) int {
	return slices.Index([]string{machine.Running, machine.Idle, machine.Starting, "", machine.Ended}, j.State)
}

// busy returns how much of the devices' time a job has, in steps of ten per cent: with smaller
// steps jobs would swap places at every sample.
func busy(j *machine.Job) int {
	sum := 0.0
	for _, d := range j.Devices {
		sum += max(0, timeOn(j, d.Device))
	}
	return int(sum/10 + 0.5)
}

func heldBy(j *machine.Job) (bytes uint64) {
	for _, d := range j.Devices {
		bytes += d.Used
	}
	return bytes
}

// chosen reports whether a job belongs to the chosen user, and itself or one of its processes
// matches the filter.
func (m *Model) chosen(j *machine.Job) bool {
	if m.user != "" && j.Owner != m.user {
		return false
	}
	return m.matchesJob(j) || slices.ContainsFunc(j.Processes, m.matchesProcess)
}

// matchesJob reports whether a job's name, path, owner, state or command contains the filter.
func (m *Model) matchesJob(j *machine.Job) bool {
	return m.matches(j.Title(), j.Path, j.Owner, j.Launcher, j.State, strings.Join(j.Command, " "))
}

func (m *Model) matchesProcess(p machine.Process) bool {
	return m.matches(p.Name, p.User, p.State, p.Container, fmt.Sprint(p.PID), fmt.Sprint(p.HostPID))
}

// matches reports whether one of the texts contains the filter, ignoring case.
func (m *Model) matches(texts ...string) bool {
	filter := strings.ToLower(m.filter)
	return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(strings.ToLower(text), filter) })
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

// owners returns the users with jobs, and those with processes outside jobs.
func (m *Model) owners() (names []string) {
	for i := range m.sample.Jobs {
		names = append(names, m.sample.Jobs[i].Owner)
	}
	for _, o := range m.sample.Outside {
		names = append(names, o.User)
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == "" })
}
