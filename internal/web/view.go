package web

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"ration/internal/humanfmt"
	"ration/internal/termtext"
	"ration/machine"
)

const (
	// maxJobs bounds the jobs in each list, because a tenant can make any number.
	maxJobs = 400
	// maxDerived bounds the devices that are known only from jobs.
	maxDerived = 64
)

// topView is the line below the heading.
type topView struct {
	Host, Note string
	Figures    []figure
}

// figure is a number about the whole machine.
type figure struct{ Value, Name string }

// findingView is a finding for the template.
type findingView struct{ Text, Remedy, Href string }

// view draws a machine. It does not draw unchanged jobs again.
func (h *hub) view(m *machine.Machine, now time.Time) (fragments map[string]string, lists map[string][]string) {
	fragments, lists = map[string]string{}, map[string][]string{}
	m, derived := withDevices(m)
	u := h.holdingsOf(m)
	h.colours.assign(u.held())
	fragments["top"] = render("top", h.top(m, u))
	fragments["findings"] = render("findings", h.findings(m))
	fragments["devices-head"] = render("devices-head", headOf(m))
	fragments["users"] = render("users", h.users(m, u))
	lists["devices"] = []string{}
	for i := range m.Devices {
		g := &m.Devices[i]
		v := h.gpu(m, g, u, derived)
		fragments[v.ID] = render("gpu", v)
		lists["devices"] = append(lists["devices"], v.ID)
		c := h.chart.view(g, h.colours)
		fragments[c.ID] = render("chart", c)
	}
	fragments["no-devices"] = render("no-devices", len(m.Devices) == 0)
	if h.opts.Public {
		return fragments, lists
	}
	h.drawJobs(m, fragments, lists)
	fragments["waiting"] = render("waiting", waitingOf(m))
	fragments["outside"] = render("outside", outsideOf(m))
	fragments["events"] = render("events", h.events.view(m, h.opts.Viewer == ""))
	return fragments, lists
}

// withDevices returns the machine with the devices that its jobs have recorded, if no driver
// reports any.
func withDevices(m *machine.Machine) (*machine.Machine, bool) {
	if len(m.Devices) > 0 {
		return m, false
	}
	out, beside := *m, besidePolicy()
	for i := range m.Jobs {
		j := &m.Jobs[i]
		for n := range j.Devices {
			d := &j.Devices[n]
			if d.Total == 0 || j.State == machine.Ended {
				continue
			}
			at := out.DeviceOf(d)
			if at < 0 && len(out.Devices) == maxDerived {
				continue
			}
			if at < 0 {
				number := d.Device
				for slices.ContainsFunc(out.Devices, func(g machine.GPU) bool { return g.Device == number }) {
					number++ // another job uses the same number for another device
				}
				out.Devices = append(out.Devices, machine.GPU{Device: number, UUID: d.UUID, Total: d.Total})
				at = len(out.Devices) - 1
			}
			g := &out.Devices[at]
			g.Used += d.Used
			if j.LeavesRoom() || beside(j) {
				continue
			}
			if d.Limited && d.Limit > 0 {
				g.Rations += min(d.Limit, ^g.Rations)
				g.Jobs++
			} else if !d.Limited && d.Used > 0 {
				g.Unlimited++
			}
		}
	}
	slices.SortFunc(out.Devices, func(a, b machine.GPU) int { return cmp.Compare(a.Device, b.Device) })
	return &out, len(out.Devices) > 0
}

func (h *hub) top(m *machine.Machine, u *holdings) topView {
	v := topView{Host: h.host}
	if h.opts.Note != nil {
		v.Note = h.opts.Note()
	}
	var used, total, rations uint64
	for _, g := range m.Devices {
		used, total, rations = used+g.Used, total+g.Total, rations+min(g.Rations, ^rations)
	}
	live, processes, refused := 0, 0, machine.DeniedCount(m.Denied, func(*machine.Denied) bool { return true })
	for i := range m.Jobs {
		j := &m.Jobs[i]
		if j.State == machine.Ended {
			continue
		}
		live++
		processes += len(j.Processes)
		for _, d := range j.Devices {
			refused += d.Refused
		}
	}
	if total > 0 {
		v.Figures = append(v.Figures, figure{humanfmt.Bytes(used), "used of " + humanfmt.Bytes(total)}, figure{humanfmt.Bytes(rations), "handed out"})
	}
	if !h.opts.Public {
		if users := len(u.jobs); h.opts.Viewer == "" && users > 1 {
			v.Figures = append(v.Figures, figure{humanfmt.Count(users), "users"})
		}
		v.Figures = append(v.Figures, figure{humanfmt.Count(live), word(live, "job", "jobs")}, figure{humanfmt.Count(processes), word(processes, "process", "processes")},
			figure{humanfmt.Count(refused), word(int(min(refused, 2)), "refusal", "refusals")})
	}
	return v
}

func word(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

func (h *hub) findings(m *machine.Machine) (out []findingView) {
	ids := map[string]string{}
	for i := range m.Jobs {
		ids[m.Jobs[i].Path] = "#" + elementID(m.Jobs[i].ID())
	}
	for _, f := range m.Findings {
		v := findingView{Text: sentence(f.Text), Remedy: sentence(upperFirst(f.Remedy))}
		if f.Path != "" {
			v.Href = ids[f.Path]
		} else if f.Device >= 0 {
			v.Href = fmt.Sprintf("#gpu-%d", f.Device)
		}
		out = append(out, v)
	}
	return out
}

func upperFirst(text string) string {
	r, size := utf8.DecodeRuneInString(text)
	return strings.ToUpper(string(r)) + text[size:]
}

// waitingView has the commands that wait for room.
type waitingView struct {
	Rows  []waitingRow
	Count int
}

type waitingRow struct {
	Place                   int
	User, Job, Wants, Since string
}

func waitingOf(m *machine.Machine) waitingView {
	out := waitingView{Count: len(m.Waiting)}
	for _, w := range m.Waiting[:min(len(m.Waiting), maxJobs)] {
		out.Rows = append(out.Rows, waitingRow{w.Place, w.Owner, cmp.Or(w.Job, "?"), w.WantsText(), w.Since.Local().Format("Jan 2 15:04")})
	}
	return out
}

// outsideView has the processes that hold memory and are in no job.
type outsideView struct {
	Rows  []outsideRow
	Count int
	HasIn bool
}

type outsideRow struct {
	PID, Device               int
	User, Name, In, HeldBytes string
}

func outsideOf(m *machine.Machine) outsideView {
	out := outsideView{Count: len(m.Outside)}
	for _, o := range m.Outside[:min(len(m.Outside), maxProcesses)] {
		out.Rows = append(out.Rows, outsideRow{o.PID, o.Device, cmp.Or(o.User, "?"), cmp.Or(termtext.Printable(o.Name), "?"), termtext.Printable(o.Container), humanfmt.Bytes(o.Used)})
		out.HasIn = out.HasIn || o.Container != ""
	}
	return out
}
