package tui

import (
	"fmt"
	"path/filepath"
	"strings"

	tea "charm.land/bubbletea/v2"

	"ration/internal/humanfmt"
	"ration/machine"
)

// HostReader reads how much processes use of the host's processors and memory (node.HostMeter.Read). It is called from
// one goroutine at a time.
type HostReader func([]machine.ProcessID) []*machine.HostUse

// hostUse is what is known of the processes on the screen. Others are not read: a machine may have thousands.
type hostUse struct {
	reader  HostReader // nil if nothing is read
	of      map[machine.ProcessID]*machine.HostUse
	due     bool // there is a new sample
	reading bool
}

// hostRead is the result of a read.
type hostRead struct {
	processes []machine.ProcessID
	use       []*machine.HostUse
	all       bool // all processes on the screen
}

// maxHostReads bounds how many processes are read where the order or the filter needs those that are not shown.
const maxHostReads = 4096

// readHost reads the processes on the screen after each sample, and those that a key has brought there. It returns nil
// if there is nothing to read.
func (m *Model) readHost() tea.Cmd {
	h := &m.host
	if h.reader == nil || h.reading {
		return nil
	}
	var wanted []machine.ProcessID
	added := map[machine.ProcessID]bool{}
	for _, r := range m.wantedRows() {
		if _, known := h.of[r.Local]; r.Local.PID != 0 && !added[r.Local] && (h.due || !known) && len(wanted) < maxHostReads {
			added[r.Local] = true
			wanted = append(wanted, r.Local)
		}
	}
	all, reader := h.due, h.reader
	h.due = false
	if len(wanted) == 0 {
		return nil
	}
	h.reading = true
	return func() tea.Msg { return hostRead{wanted, reader(wanted), all} }
}

// setHost replaces what is known by what was read.
func (m *Model) setHost(r hostRead) {
	if r.all || m.host.of == nil {
		m.host.of = map[machine.ProcessID]*machine.HostUse{}
	}
	for i, p := range r.processes {
		m.host.of[p] = r.use[i]
	}
	m.host.reading = false
}

// wantedRows returns the rows of processes on the screen, or all if their order or the filter needs all.
func (m *Model) wantedRows() (out []processRow) {
	if m.searches() {
		for i := range m.sample.Jobs {
			out = append(out, m.rowsOf(&m.sample.Jobs[i], true)...)
		}
		return out
	}
	rows := m.processRows()
	if m.Processes.Sort == "cpu" || m.Processes.Sort == "rss" {
		return rows
	}
	shown := map[string]bool{}
	for _, l := range m.lines() {
		if l.target.kind == processTarget {
			shown[l.target.id] = true
		}
	}
	for _, r := range rows {
		if shown[r.id()] {
			out = append(out, r)
		}
	}
	return out
}

// cpuText formats a share of one processor.
func cpuText(u *machine.HostUse) string {
	if u == nil {
		return ""
	}
	return fmt.Sprintf("%.0f%%", u.CPU.Percent)
}

func rssText(u *machine.HostUse) string {
	if u == nil {
		return ""
	}
	return humanfmt.Short(u.RSS)
}

// command returns the command line of a process or, if that is unknown, its name.
func (r processRow) command() string {
	if r.use == nil || len(r.use.Command) == 0 {
		return claim(r, r.Name)
	}
	return strings.Join(r.use.Command, " ")
}

// renamed reports whether a process has another name than its program.
func (r processRow) renamed() bool {
	if r.use == nil || len(r.use.Command) == 0 {
		return false
	}
	program := filepath.Base(r.use.Command[0])
	return !strings.HasPrefix(program, r.Name) && !strings.HasPrefix(r.Name, program) // the kernel cuts names
}

func (r processRow) cpu() float64 {
	if r.use == nil {
		return -1
	}
	return r.use.CPU.Percent
}

func (r processRow) rss() uint64 {
	if r.use == nil {
		return 0
	}
	return r.use.RSS
}
