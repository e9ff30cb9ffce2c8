package web

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"ration/internal/humanfmt"
	"ration/internal/termtext"
	"ration/machine"
)

// openDevices is the largest number of devices whose details are open at first.
const openDevices = 2

// devicesHead is the heading of the devices.
type devicesHead struct{ What string }

// headOf says which devices there are, if all are of one kind.
func headOf(m *machine.Machine) devicesHead {
	if len(m.Devices) < 2 || !uniform(m) || m.Devices[0].Name == "" {
		return devicesHead{}
	}
	return devicesHead{fmt.Sprintf("%d × %s, %s each", len(m.Devices), modelOf(&m.Devices[0]), humanfmt.Bytes(m.Devices[0].Total))}
}

// uniform reports whether all devices are of one kind.
func uniform(m *machine.Machine) bool {
	return !slices.ContainsFunc(m.Devices, func(g machine.GPU) bool { return g.Name != m.Devices[0].Name || g.Total != m.Devices[0].Total })
}

func modelOf(g *machine.GPU) string {
	return termtext.Printable(strings.TrimPrefix(g.Name, "NVIDIA "))
}

// part is a part of a bar. X and W are fractions of the bar's width.
type part struct {
	Name           string // user (or job) that has it; empty for other parts
	Class, Pattern string
	Label, Title   string
	Href           string
	Jobs           []jobPart // the largest
	MoreJobs       int
	X, W           string
	Fits           int    // how wide the bar must be for the label, in rem; 0 if it never fits
	Short          string // beginning of the label, for a narrow bar
	ShortFits      int
	bytes          uint64
	style          style
}

// gpuView is a device for the template.
type gpuView struct {
	ID, ChartID, Name, Model string
	Open                     bool // its details are open at first
	Used, Total, Percent     string
	Number                   string // Used, without its unit if Total has the same
	Busy                     string
	Failed                   bool     // the driver does not answer for it, so what is in use is not known
	Facts                    []string // from the driver
	HandedOut, OverBy        string   // OverBy: by how much the limits exceed the device's memory; empty if they do not
	Bar, Rations             []part
	CardAt                   string // where the device's memory ends, if not at the end of the bar
	Cut                      bool   // the limits exceed what the bar shows
	Legend                   []part
	Free                     string
	Summary                  string
}

func (h *hub) gpu(m *machine.Machine, g *machine.GPU, u *holdings, derived bool) gpuView {
	v := gpuView{ID: fmt.Sprintf("gpu-%d", g.Device), ChartID: fmt.Sprintf("chart-%d", g.Device), Name: fmt.Sprintf("GPU %d", g.Device),
		Open: len(m.Devices) <= openDevices, Model: modelOf(g), Total: humanfmt.Bytes(g.Total), Failed: g.Failed}
	if derived {
		v.Model = "as its jobs know it"
	}
	used, rations := h.parts(u.devices[g.Device])
	held := sum(used)
	used = append(used, part{Class: "rest", style: grey, Label: h.restLabel(), bytes: g.Used - min(g.Used, held)})
	inUse := max(g.Used, held)
	v.Used, v.Free = humanfmt.Bytes(inUse), humanfmt.Bytes(g.Total-min(g.Total, inUse))
	v.Number = v.Used
	if number, unit, _ := strings.Cut(v.Used, " "); strings.HasSuffix(v.Total, " "+unit) {
		v.Number = number
	}
	if g.Total > 0 {
		v.Percent = fmt.Sprintf("%.0f %%", 100*float64(inUse)/float64(g.Total))
	}
	if h.opts.Public || h.opts.Viewer != "" { // only the total of other users' limits is known
		rations = append(rations, part{Class: "rest", style: grey, Label: h.restLabel(), bytes: g.Rations - min(g.Rations, sum(rations))})
	}
	v.HandedOut = "nothing handed out"
	if g.Jobs > 0 {
		v.HandedOut = fmt.Sprintf("%s handed out to %s", humanfmt.Bytes(g.Rations), plural(g.Jobs, "job", "jobs"))
	}
	if g.Unlimited > 0 {
		v.HandedOut += fmt.Sprintf(", %s without a limit", plural(g.Unlimited, "job", "jobs"))
	}
	if g.Total > 0 && g.Rations > g.Total {
		v.OverBy = humanfmt.Bytes(g.Rations - g.Total)
	}
	if g.Utilization != nil {
		v.Busy = fmt.Sprintf("%d %% busy", *g.Utilization)
		v.Facts = append(v.Facts, v.Busy)
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
	v.Summary = barSummary(&v)
	return v
}

// restLabel returns the label for the rest of a device's memory.
func (h *hub) restLabel() string {
	switch {
	case h.opts.Public:
		return "in use"
	case h.opts.Viewer != "":
		return "others and driver"
	}
	return "not counted"
}

// parts returns how much each user (or job) uses of a device, and the limits there, in the order of
// the colours; and the memory held outside of jobs.
func (h *hub) parts(of map[string]*share) (used, rations []part) {
	var outside []part
	others, othersRation, count := uint64(0), uint64(0), 0
	for name, s := range of {
		st := h.colours.style(name)
		if s.outside > 0 {
			label := "in no job"
			if name != label {
				label = name + " (in no job)"
			}
			outside = append(outside, part{Name: name, style: grey, Class: "outside", Label: label, Href: "#outside", bytes: s.outside})
		}
		if s.limits+s.others == 0 {
			continue
		}
		if st == grey {
			others, othersRation, count = others+min(s.used, ^others), othersRation+min(s.limit, ^othersRation), count+1
			continue
		}
		p := part{Name: name, Class: st.Class(), Pattern: st.Pattern(), Label: name, Jobs: s.jobs, bytes: s.used, style: st}
		if len(p.Jobs) == 1 {
			p.Href = p.Jobs[0].Href
		}
		slices.SortStableFunc(p.Jobs, func(a, b jobPart) int {
			return cmp.Or(cmp.Compare(b.bytes, a.bytes), strings.Compare(a.Title, b.Title))
		})
		if extra := len(p.Jobs) - maxListedJobs; extra > 0 {
			p.Jobs, p.MoreJobs = p.Jobs[:maxListedJobs], extra
		}
		used = append(used, p)
		if p.bytes = s.limit; s.limits > 0 {
			rations = append(rations, p)
		}
	}
	byStyle := func(a, b part) int { return cmp.Compare(a.style, b.style) }
	slices.SortFunc(used, byStyle)
	slices.SortFunc(rations, byStyle)
	if count > 0 {
		label := plural(count, "more user", "more users")
		if h.opts.Viewer != "" {
			label = plural(count, "more job", "more jobs")
		}
		p := part{Class: noColour, style: grey, Label: label, Href: "#jobs-heading", bytes: others}
		used = append(used, p)
		p.bytes = othersRation
		rations = append(rations, p)
	}
	slices.SortFunc(outside, func(a, b part) int { return strings.Compare(a.Label, b.Label) })
	return append(used, outside...), rations
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
		if p.style != grey {
			p.Short = prefix(p.Label, shortLabel)
			p.ShortFits = fits(p.Short, width)
		}
		if p.ShortFits == p.Fits {
			p.ShortFits = 0
		}
		at += min(p.bytes, scale-at)
		out = append(out, p)
	}
	return out
}

// shortLabel is the number of letters of a short label.
const shortLabel = 2

func prefix(text string, letters int) string {
	return string([]rune(text)[:min(letters, utf8.RuneCountInString(text))])
}

// widths are the widths of a bar at which the style sheet shows more labels, in rem.
var widths = []int{8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 24, 27, 30, 36, 45, 60, 80}

// fits returns how wide a bar must be so that a label fits into a part of it: one of widths, or 0 if
// it never fits. A letter is half a rem wide.
func fits(label string, width float64) int {
	need := 0.5*float64(utf8.RuneCountInString(label)) + 0.4
	for _, w := range widths {
		if need <= float64(w)*width {
			return w
		}
	}
	return 0
}

// Bytes returns the size for the legend.
func (p part) Bytes() string { return humanfmt.Bytes(p.bytes) }

func percent(share float64) string {
	return fmt.Sprintf("%.2f%%", 100*math.Min(1, math.Max(0, share)))
}

// barSummary describes a bar in words, for screen readers.
func barSummary(v *gpuView) string {
	parts := make([]string, len(v.Bar))
	for i, p := range v.Bar {
		parts[i] = p.Title
	}
	text := fmt.Sprintf("%s: %s of %s used, %s free", v.Name, v.Used, v.Total, v.Free)
	if v.Failed {
		text = v.Name + " does not answer"
	}
	if len(parts) > 0 {
		text += "; " + strings.Join(parts, ", ")
	}
	return text + "; " + v.HandedOut
}
