package web

import (
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"ration/check/expect"
	"ration/check/webtest"
	"ration/machine"
)

// rgb is a colour, linear.
type rgb [3]float64

// colours of the style sheet, by name: in the light, and in the dark.
func palette(t *testing.T) map[string][2]rgb {
	t.Helper()
	text, err := files.ReadFile("files/style.css")
	expect.OK(t, err)
	out := map[string][2]rgb{}
	for _, m := range regexp.MustCompile(`--([a-z0-9-]+): light-dark\(#([0-9a-f]{6}), #([0-9a-f]{6})\)`).FindAllStringSubmatch(string(text), -1) {
		out[m[1]] = [2]rgb{parseColour(m[2]), parseColour(m[3])}
	}
	return out
}

func parseColour(text string) (out rgb) {
	var v [3]uint8
	_, _ = fmt.Sscanf(text, "%02x%02x%02x", &v[0], &v[1], &v[2])
	for i := range v {
		c := float64(v[i]) / 255
		if out[i] = c / 12.92; c > 0.04045 {
			out[i] = math.Pow((c+0.055)/1.055, 2.4)
		}
	}
	return out
}

// contrast is as WCAG 2 has it.
func contrast(a, b rgb) float64 {
	l := func(c rgb) float64 { return 0.2126*c[0] + 0.7152*c[1] + 0.0722*c[2] + 0.05 }
	return max(l(a), l(b)) / min(l(a), l(b))
}

// deficiencies are how people see who lack one kind of cone (Machado, Oliveira and Fernandes 2009).
var deficiencies = map[string][3]rgb{
	"none":         {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}},
	"protanopia":   {{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216}, {-0.003882, -0.048116, 1.051998}},
	"deuteranopia": {{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881}},
	"tritanopia":   {{1.255528, -0.076749, -0.178779}, {-0.078411, 0.930809, 0.147602}, {0.004733, 0.691367, 0.303900}},
}

func apply(m [3]rgb, c rgb) (out rgb) {
	for i := range m {
		out[i] = min(1, max(0, m[i][0]*c[0]+m[i][1]*c[1]+m[i][2]*c[2]))
	}
	return out
}

// oklab is a colour in a space in which distances are about as people see them.
func oklab(c rgb) rgb {
	l := math.Cbrt(0.4122214708*c[0] + 0.5363325363*c[1] + 0.0514459929*c[2])
	m := math.Cbrt(0.2119034982*c[0] + 0.6806995451*c[1] + 0.1073969566*c[2])
	s := math.Cbrt(0.0883024619*c[0] + 0.2817188376*c[1] + 0.6299787005*c[2])
	return rgb{0.2104542553*l + 0.7936177850*m - 0.0040720468*s, 1.9779984951*l - 2.4285922050*m + 0.4505937099*s, 0.0259040371*l + 0.7827717662*m - 0.8086757660*s}
}

// The colours of jobs are told apart in both themes, by people who lack a kind of cone as well;
// what is written is readable on what it is written on.
func TestColoursAreTold(t *testing.T) {
	p := palette(t)
	for theme := range 2 {
		for name, m := range deficiencies {
			for i := range colourCount {
				for j := range i {
					a, b := oklab(apply(m, p[fmt.Sprintf("c%d", i)][theme])), oklab(apply(m, p[fmt.Sprintf("c%d", j)][theme]))
					if d := math.Sqrt((a[0]-b[0])*(a[0]-b[0]) + (a[1]-b[1])*(a[1]-b[1]) + (a[2]-b[2])*(a[2]-b[2])); d < 0.1 {
						t.Errorf("theme %d, %s: c%d and c%d are %.3f apart", theme, name, i, j, d)
					}
				}
			}
		}
		written := [][2]string{{"text", "ground"}, {"text", "card"}, {"quiet", "ground"}, {"quiet", "card"}, {"link", "card"}, {"link", "ground"}, {"bad", "card"}, {"bad", "ground"}, {"bad", "bad-ground"},
			{"text", "bad-ground"}, {"quiet", "bad-ground"}, {"good", "card"}, {"card", "text"}, {"onx", "cx"}, {"onrest", "rest"}}
		for i := range colourCount {
			written = append(written, [2]string{fmt.Sprintf("on%d", i), fmt.Sprintf("c%d", i)})
		}
		for _, w := range written {
			expect.Must(t, p[w[0]] != ([2]rgb{}) && p[w[1]] != ([2]rgb{}), "no colours", w)
			if c := contrast(p[w[0]][theme], p[w[1]][theme]); c < 4.5 {
				t.Errorf("theme %d: %s on %s has a contrast of %.2f", theme, w[0], w[1], c)
			}
		}
	}
}

// The jobs that hold most have colours; one keeps its own while it is not far behind.
func TestColoursStay(t *testing.T) {
	m := webtest.Machine(1, 20, 1)
	hold := func(n int, bytes uint64) { m.Jobs[n].Devices[0].Used = bytes }
	for n := range m.Jobs {
		hold(n, uint64(100-n)*webtest.GiB)
	}
	c := newColours()
	c.assign(m.Jobs)
	first := c.class(m.Jobs[7].ID())
	expect.Must(t, first != noColour && c.class(m.Jobs[8].ID()) == noColour && len(c.of) == colourCount, c.of)
	hold(8, 95*webtest.GiB) // a little more than the last one
	c.assign(m.Jobs)
	expect.True(t, c.class(m.Jobs[7].ID()) == first && c.class(m.Jobs[8].ID()) == noColour, "it flickers", c.of)
	hold(8, 200*webtest.GiB) // it comes first, and the last gives its colour up
	c.assign(m.Jobs)
	if c.class(m.Jobs[8].ID()) != first || c.class(m.Jobs[7].ID()) != noColour || c.class(m.Jobs[0].ID()) == noColour || len(c.of) != colourCount {
		t.Errorf("got %v", c.of)
	}
	m.Jobs[8].State = machine.Ended
	c.assign(m.Jobs)
	expect.True(t, c.class(m.Jobs[8].ID()) == noColour && c.class(m.Jobs[7].ID()) == first, c.of)
}

// A chart is what was held, by layer, with gaps where nothing is known.
func TestChart(t *testing.T) {
	for _, tt := range []struct {
		name string
		edge []point
		want string
	}{
		{"steps", []point{{0, 1000}, {1, 500}, {2, 500}, {3, 500}, {4, 250}}, "M0 1000V1000L1 500H3L4 250V1000Z"},
		{"a gap", []point{{0, 500}, {1, 500}, {9, 500}}, "M0 1000V500H1V1000ZM9 1000V500h1V1000Z"},
		{"nothing", []point{{0, 1000}, {1, 1000}}, ""},
	} {
		expect.Equal(t, pathOf(tt.edge), tt.want, tt.name)
	}
	m := webtest.Machine(2, 3, 1)
	now := time.Now()
	c := newChart()
	expect.True(t, c.stale(now), "it has a history")
	c.seed(m, webtest.Past(m, now.Add(-10*time.Second)))
	c.add(m, now)
	c.add(m, now)
	expect.Must(t, !c.stale(now) && !c.isDue(now) && len(c.samples) >= slotCount-4, len(c.samples), "samples")
	col := newColours()
	col.assign(m.Jobs)
	v := c.view(&m.Devices[0], col)
	expect.True(t, len(v.Areas) == 3 && v.Areas[0].Class == "rest" && !v.Empty, v.Areas) // two jobs, and what is not theirs
	for range 400 {
		now = now.Add(slotTime)
		c.add(m, now)
	}
	expect.Equal(t, len(c.samples), slotCount, "samples")
}

// A bar has the jobs in it, what is outside, and limits; the device ends where it is overbooked.
func TestBar(t *testing.T) {
	m := webtest.Machine(1, 12, 1)
	m.Jobs[3].Devices[0].Used = 40 * webtest.GiB
	m.Outside = []machine.Outside{{PID: 7, Used: 10 * webtest.GiB, Name: "other"}}
	m.Devices[0].Used, m.Devices[0].Rations = 70*webtest.GiB, 280*webtest.GiB
	h := newHub(Options{})
	h.colours.assign(m.Jobs)
	v := h.gpu(m, &m.Devices[0], false)
	expect.True(t, v.CardAt == "66.67%" && v.Cut && v.Over && v.Used == "70 GiB", v)
	var labels []string
	for _, p := range v.Bar {
		labels = append(labels, p.Class+" "+p.Label)
	}
	if text := strings.Join(labels, ","); len(v.Bar) != colourCount+3 || !strings.Contains(text, "cx 4 more jobs,outside in no job,rest the driver") || !strings.Contains(text, " job-3") {
		t.Errorf("got %s", text)
	}
	expect.True(t, len(v.Rations) == colourCount+1 && strings.Contains(v.Summary, "in no job: 10 GiB"), v.Rations)
	// Without a driver the devices are those that the jobs know.
	m.Devices = nil
	d, derived := withDevices(m)
	if !derived || len(d.Devices) != 1 || d.Devices[0].Total != 140*webtest.GiB || d.Devices[0].Jobs != 12 || d.Devices[0].Used < 40*webtest.GiB {
		t.Errorf("got %+v", d.Devices)
	}
}
