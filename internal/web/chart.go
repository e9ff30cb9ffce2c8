package web

import (
	"fmt"
	"math"
	"strings"
	"time"

	"ration/internal/humanfmt"
	"ration/internal/node"
	"ration/machine"
)

// The chart shows the last 15 minutes in steps of five seconds, as an agent keeps them.
const (
	slotTime  = 5 * time.Second
	slotCount = 180
	chartTop  = 1000 // height of a chart, in SVG units; its width is slotCount
)

// deviceSample is the use of a device at one time.
type deviceSample struct {
	used    uint64            // by the driver's count, but at least as much as the jobs hold
	outside uint64            // held by processes of no job
	holders map[string]uint64 // by user (or job)
}

// sample is the use of all devices at one time, by device number.
type sample struct {
	slot    int64 // its time, in units of slotTime
	devices map[int]*deviceSample
}

func (s *sample) device(number int) *deviceSample {
	d := s.devices[number]
	if d == nil {
		d = &deviceSample{holders: map[string]uint64{}}
		s.devices[number] = d
	}
	return d
}

// chart keeps the samples that are shown.
type chart struct {
	samples []*sample // oldest first
}

func newChart() *chart { return &chart{} }

func slotOf(t time.Time) int64 { return t.UnixNano() / int64(slotTime) }

// last returns the slot of the last sample.
func (c *chart) last() int64 {
	if len(c.samples) == 0 {
		return math.MinInt64 / 2
	}
	return c.samples[len(c.samples)-1].slot
}

func (c *chart) isDue(now time.Time) bool { return slotOf(now) > c.last() }

// due returns when to take the next sample.
func (c *chart) due(now time.Time) time.Time {
	return time.Unix(0, (slotOf(now)+1)*int64(slotTime))
}

// stale reports whether samples are missing that an agent may have.
func (c *chart) stale(now time.Time) bool { return slotOf(now)-c.last() > 3 }

// seedChart adds the samples from before the page was opened.
func (h *hub) seedChart(m *machine.Machine, past node.History) {
	c := h.chart
	numbers := map[machine.JobID]map[int]int{} // maps the number of a device in the job to that on the machine
	for i := range m.Jobs {
		of := map[int]int{}
		for n := range m.Jobs[i].Devices {
			d := &m.Jobs[i].Devices[n]
			if at := m.DeviceOf(d); at >= 0 {
				of[d.Device] = m.Devices[at].Device
			}
		}
		numbers[m.Jobs[i].ID()] = of
	}
	c.samples = nil
	for at, t := range past.Times {
		s := &sample{slot: slotOf(t), devices: map[int]*deviceSample{}}
		for i := range past.Devices {
			if d := &past.Devices[i]; at < len(d.Used) && d.Used[at] != nil {
				s.device(d.Device).used = *d.Used[at]
			}
		}
		for i := range past.Jobs {
			j := &past.Jobs[i]
			if at >= len(j.Used) || j.Used[at] == nil {
				continue
			}
			key := machine.JobID{Path: j.Path, Created: j.Created}
			number, known := numbers[key][j.Device]
			if !known {
				number = j.Device
			}
			s.device(number).holders[h.holderOf(j.Owner, j.UID, j.Job, j.Path)] += *j.Used[at]
		}
		if s.slot > c.last() {
			c.samples = append(c.samples, s)
		}
	}
}

// addSample takes a sample if one is due.
func (h *hub) addSample(m *machine.Machine, now time.Time) {
	c, slot := h.chart, slotOf(now)
	if slot <= c.last() {
		return
	}
	s := &sample{slot: slot, devices: map[int]*deviceSample{}}
	for i := range m.Devices {
		s.device(m.Devices[i].Device).used = m.Devices[i].Used
	}
	for i := range m.Jobs {
		j := &m.Jobs[i]
		if j.State == machine.Ended {
			continue
		}
		name := h.holder(j)
		for n := range j.Devices {
			if at := m.DeviceOf(&j.Devices[n]); at >= 0 && j.Devices[n].Used > 0 {
				s.device(m.Devices[at].Device).holders[name] += j.Devices[n].Used
			}
		}
	}
	for _, o := range m.Outside {
		s.device(o.Device).outside += o.Used
	}
	c.samples = append(c.samples, s)
	for len(c.samples) > 0 && c.samples[0].slot <= slot-slotCount {
		c.samples = c.samples[1:]
	}
}

// chartView is the chart of a device.
type chartView struct {
	ID, Summary      string
	Full, Half       string // labels at the top and in the middle
	Areas            []area // topmost first; each is drawn over the previous one
	From             string // time of the left edge
	Width, Height    int
	Empty            bool
	NowUsed, MostHad string
}

// area is the shape below the upper edge of one layer.
type area struct{ Name, Class, Pattern, Path string }

// Layers of a chart above those that have a colour.
const (
	layerOthers = styleCount + iota
	layerOutside
	layerRest
	layerCount
)

var layerClasses = [layerCount]string{layerOthers: noColour, layerOutside: "outside", layerRest: "rest"}

// view draws the chart of a device, with the current colours.
func (c *chart) view(g *machine.GPU, col *colours) chartView {
	v := chartView{ID: fmt.Sprintf("chart-%d", g.Device), Full: humanfmt.Bytes(g.Total), Half: humanfmt.Bytes(g.Total / 2), Width: slotCount, Height: chartTop}
	first := c.last() - slotCount + 1
	var edges [layerCount][]point
	var names [layerCount]string
	var filled [layerCount]bool
	least, most, now := uint64(math.MaxUint64), uint64(0), uint64(0)
	for _, s := range c.samples {
		d := s.devices[g.Device]
		if d == nil || s.slot < first {
			continue
		}
		var layer [layerCount]uint64
		var sum uint64
		for name, bytes := range d.holders {
			at := layerOthers
			if s := col.style(name); s != grey {
				at, names[s] = int(s), name
			}
			layer[at] += bytes
			sum += bytes
		}
		layer[layerOutside] = d.outside
		sum += d.outside
		layer[layerRest] = d.used - min(d.used, sum)
		now = max(d.used, sum)
		least, most = min(least, now), max(most, now)
		up := uint64(0)
		for n := range layer {
			up += layer[n]
			filled[n] = filled[n] || layer[n] > 0
			edges[n] = append(edges[n], point{int(s.slot - first), height(up, g.Total)})
		}
	}
	if len(edges[0]) == 0 {
		v.Empty, v.Summary = true, "nothing is known of the last 15 minutes yet"
		return v
	}
	v.NowUsed, v.MostHad = humanfmt.Bytes(now), humanfmt.Bytes(most)
	v.Summary = fmt.Sprintf("memory in use on GPU %d in the last 15 minutes: %s now, at least %s, at most %s", g.Device, humanfmt.Bytes(now), humanfmt.Bytes(least), humanfmt.Bytes(most))
	below := ""
	for n := range edges {
		if !filled[n] {
			continue
		}
		path := pathOf(edges[n])
		if path == below || path == "" { // the layer is too thin to be seen
			continue
		}
		below = path
		a := area{Class: layerClasses[n], Path: path}
		if n < styleCount {
			a = area{names[n], style(n).Class(), style(n).Pattern(), path}
		}
		v.Areas = append([]area{a}, v.Areas...)
	}
	return v
}

// point is a point of an upper edge: its slot, and its distance from the top.
type point struct{ x, y int }

func height(bytes, total uint64) int {
	if total == 0 {
		return chartTop
	}
	return chartTop - int(math.Round(float64(chartTop)*min(1, float64(bytes)/float64(total))))
}

// pathOf draws an edge and the area below it. Each sequence of samples without a gap is a shape of
// its own. Equal values are joined into one step, so that a quiet machine has a short path.
func pathOf(edge []point) string {
	var out strings.Builder
	for i := 0; i < len(edge); {
		end := i + 1
		for end < len(edge) && edge[end].x-edge[end-1].x <= 3 {
			end++
		}
		run := edge[i:end]
		i = end
		if empty(run) {
			continue
		}
		fmt.Fprintf(&out, "M%d %dV%d", run[0].x, chartTop, run[0].y)
		for n := 1; n < len(run); n++ {
			if run[n].y != run[n-1].y {
				fmt.Fprintf(&out, "L%d %d", run[n].x, run[n].y)
			} else if n+1 == len(run) || run[n+1].y != run[n].y {
				fmt.Fprintf(&out, "H%d", run[n].x)
			}
		}
		if len(run) == 1 {
			fmt.Fprintf(&out, "h1")
		}
		fmt.Fprintf(&out, "V%dZ", chartTop)
	}
	return out.String()
}

func empty(run []point) bool {
	for _, p := range run {
		if p.y != chartTop {
			return false
		}
	}
	return true
}
