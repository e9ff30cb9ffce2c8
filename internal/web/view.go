package web

import (
	"cmp"
	"fmt"
	"math"
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
	h.colours.assign(m.Jobs)
	fragments["top"] = render("top", h.top(m))
	fragments["findings"] = render("findings", h.findings(m))
	lists["devices"] = []string{}
	for i := range m.Devices {
		g := &m.Devices[i]
		v := h.gpu(m, g, derived)
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
	out := *m
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
			if d.Limited {
				g.Rations += min(d.Limit, ^g.Rations)
				g.Jobs++
			} else if d.Used > 0 {
				g.Unlimited++
			}
		}
	}
	slices.SortFunc(out.Devices, func(a, b machine.GPU) int { return cmp.Compare(a.Device, b.Device) })
	return &out, len(out.Devices) > 0
}

func (h *hub) top(m *machine.Machine) topView {
	v := topView{Host: h.host}
	if h.opts.Note != nil {
		v.Note = h.opts.Note()
	}
	var used, total, rations uint64
	for _, g := range m.Devices {
		used, total, rations = used+g.Used, total+g.Total, rations+min(g.Rations, ^rations)
	}
	live, processes, refused := 0, 0, uint64(0)
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

// part is a part of a bar. X and W are fractions of the bar's width.
type part struct {
	Class, Label, Title, Href string
	X, W                      string
	Fits                      string // CSS class that says how wide the bar must be for the label
	bytes                     uint64
}

// gpuView is a device for the template.
type gpuView struct {
	ID, ChartID, Name, Model string
	Used, Total, Percent     string
	Facts                    []string // from the driver
	HandedOut                string
	Over                     bool // the limits exceed the device's memory
	Bar, Rations             []part
	CardAt                   string // where the device's memory ends, if not at the end of the bar
	Cut                      bool   // the limits exceed what the bar shows
	Legend                   []part
	Summary                  string
}

func (h *hub) gpu(m *machine.Machine, g *machine.GPU, derived bool) gpuView {
	v := gpuView{ID: fmt.Sprintf("gpu-%d", g.Device), ChartID: fmt.Sprintf("chart-%d", g.Device), Name: fmt.Sprintf("GPU %d", g.Device),
		Model: termtext.Printable(strings.TrimPrefix(g.Name, "NVIDIA ")), Total: humanfmt.Bytes(g.Total), Over: g.Rations > g.Total && g.Total > 0}
	if derived {
		v.Model = "as its jobs know it"
	}
	used, rations := h.parts(m, g)
	held := sum(used)
	used = append(used, part{Class: "rest", Label: h.restLabel(), bytes: g.Used - min(g.Used, held)})
	inUse := max(g.Used, held)
	v.Used = humanfmt.Bytes(inUse)
	if g.Total > 0 {
		v.Percent = fmt.Sprintf("%.0f %%", 100*float64(inUse)/float64(g.Total))
	}
	if h.opts.Public || h.opts.Viewer != "" { // only the total of other users' limits is known
		rations = append(rations, part{Class: "rest", Label: h.restLabel(), bytes: g.Rations - min(g.Rations, sum(rations))})
	}
	v.HandedOut = "nothing handed out"
	if g.Jobs > 0 {
		v.HandedOut = fmt.Sprintf("%s handed out to %s", humanfmt.Bytes(g.Rations), plural(g.Jobs, "job", "jobs"))
	}
	if g.Unlimited > 0 {
		v.HandedOut += fmt.Sprintf(", %s without a limit", plural(g.Unlimited, "job", "jobs"))
	}
	if g.Utilization != nil {
		v.Facts = append(v.Facts, fmt.Sprintf("%d %% busy", *g.Utilization))
	}
	if g.Temperature != nil {
		v.Facts = append(v.Facts, fmt.Sprintf("%d °C", *g.Temperature))
	}
	if g.Power != nil {
		v.Facts = append(v.Facts, fmt.Sprintf("%.0f W", *g.Power))
	}
	// The bar is as long as the device or as the sum of the limits, but at most half as long again
	// as the device.
	scale := max(g.Total, inUse, min(g.Rations, g.Total+g.Total/2))
	v.Bar, v.Rations = place(used, scale), place(rations, scale)
	v.Cut = g.Rations > scale
	if scale > g.Total {
		v.CardAt = percent(float64(g.Total) / float64(scale))
	}
	if !h.opts.Public { // there are no jobs to distinguish
		v.Legend = v.Bar
	}
	v.Summary = barSummary(&v, g)
	return v
}

// restLabel returns the label for the rest of a device's memory.
func (h *hub) restLabel() string {
	switch {
	case h.opts.Public:
		return "in use"
	case h.opts.Viewer != "":
		return "others, and the driver"
	}
	return "the driver, and not counted"
}

// parts returns how much each job uses of a device, and its limit there, jobs with colours first;
// and the memory held outside of jobs.
func (h *hub) parts(m *machine.Machine, g *machine.GPU) (used, rations []part) {
	others, othersRation, count := uint64(0), uint64(0), 0
	for i := range m.Jobs {
		j := &m.Jobs[i]
		if j.State == machine.Ended {
			continue
		}
		for n := range j.Devices {
			d := &j.Devices[n]
			if at := m.DeviceOf(d); at < 0 || m.Devices[at].Device != g.Device {
				continue
			}
			class := h.colours.class(j.ID())
			if class == noColour {
				others, othersRation, count = others+d.Used, othersRation+min(d.Limit, ^othersRation), count+1
				continue
			}
			p := part{Class: class, Label: termtext.Printable(j.Title()), Href: "#" + elementID(j.ID()), bytes: d.Used}
			used = append(used, p)
			if p.bytes = d.Limit; d.Limited {
				rations = append(rations, p)
			}
		}
	}
	byClass := func(a, b part) int { return cmp.Or(cmp.Compare(a.Class, b.Class), cmp.Compare(a.Href, b.Href)) }
	slices.SortStableFunc(used, byClass)
	slices.SortStableFunc(rations, byClass)
	if count > 0 {
		label := plural(count, "more job", "more jobs")
		used = append(used, part{Class: noColour, Label: label, Href: "#jobs-heading", bytes: others})
		rations = append(rations, part{Class: noColour, Label: label, Href: "#jobs-heading", bytes: othersRation})
	}
	outside := uint64(0)
	for _, o := range m.Outside {
		if o.Device == g.Device {
			outside += o.Used
		}
	}
	return append(used, part{Class: "outside", Label: "in no job", Href: "#outside", bytes: outside}), rations
}

func sum(parts []part) (n uint64) {
	for _, p := range parts {
		n += min(p.bytes, ^n)
	}
	return n
}

// place arranges parts side by side in a bar of the given scale. It leaves out empty parts.
func place(parts []part, scale uint64) (out []part) {
	at := uint64(0)
	for _, p := range parts {
		if p.bytes == 0 || at >= scale {
			continue
		}
		width := float64(min(p.bytes, scale-at)) / float64(scale)
		p.X, p.W = percent(float64(at)/float64(scale)), percent(width)
		p.Title = fmt.Sprintf("%s: %s", p.Label, humanfmt.Bytes(p.bytes))
		p.Fits = fits(p.Label, width)
		at += min(p.bytes, scale-at)
		out = append(out, p)
	}
	return out
}

// fits returns a CSS class for the bar width at which a label fits into its part, at about 8 pixels
// per letter.
func fits(label string, width float64) string {
	need := float64(8*utf8.RuneCountInString(label)+16) / width
	switch {
	case need <= 300:
		return "fits-phone"
	case need <= 560:
		return "fits-card"
	case need <= 1000:
		return "fits-wide"
	}
	return ""
}

// Bytes returns the size for the legend.
func (p part) Bytes() string { return humanfmt.Bytes(p.bytes) }

func percent(share float64) string {
	return fmt.Sprintf("%.2f%%", 100*math.Min(1, math.Max(0, share)))
}

// barSummary describes a bar in words, for screen readers.
func barSummary(v *gpuView, g *machine.GPU) string {
	parts := make([]string, len(v.Bar))
	for i, p := range v.Bar {
		parts[i] = p.Title
	}
	text := fmt.Sprintf("%s: %s of %s used, %s free", v.Name, v.Used, v.Total, humanfmt.Bytes(g.Total-min(g.Total, g.Used)))
	if len(parts) > 0 {
		text += "; " + strings.Join(parts, ", ")
	}
	return text + "; " + v.HandedOut
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
