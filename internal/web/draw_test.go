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

func distance(a, b rgb) float64 {
	return math.Sqrt((a[0]-b[0])*(a[0]-b[0]) + (a[1]-b[1])*(a[1]-b[1]) + (a[2]-b[2])*(a[2]-b[2]))
}

// The colours of users are told apart in both themes, by people who lack a kind of cone as well;
// what is written is readable on what it is written on.
func TestColoursAreTold(t *testing.T) {
	p := palette(t)
	for theme := range 2 {
		for name, m := range deficiencies {
			for i := range colourCount {
				for j := range i {
					a, b := oklab(apply(m, p[fmt.Sprintf("c%d", i)][theme])), oklab(apply(m, p[fmt.Sprintf("c%d", j)][theme]))
					if d := distance(a, b); d < 0.1 {
						t.Errorf("theme %d, %s: c%d and c%d are %.3f apart", theme, name, i, j, d)
					}
				}
			}
		}
		for name, m := range deficiencies {
			for i := range colourCount {
				base, card := p[fmt.Sprintf("c%d", i)][theme], p["card"][theme]
				var ink rgb // of the pattern, which lets some of the colour through
				for n := range ink {
					ink[n] = 0.6*card[n] + 0.4*base[n]
				}
				if d := distance(oklab(apply(m, base)), oklab(apply(m, ink))); d < 0.1 {
					t.Errorf("theme %d, %s: the pattern on c%d is %.3f apart from it", theme, name, i, d)
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

// holders returns users that hold 100 GiB, 99 GiB and so on.
func holders(count int) map[string]uint64 {
	held := map[string]uint64{}
	for n := range count {
		held[webtest.User(n)] = uint64(100-n) * webtest.GiB
	}
	return held
}

// A user has the same colour after a restart, whatever each holds then, and no two of 24 share one.
// Eight have plain colours.
func TestColoursAreByName(t *testing.T) {
	held := holders(styleCount)
	first := newColours()
	first.assign(held)
	again := newColours()
	for name := range held {
		held[name] = uint64(len(name))
	}
	again.assign(held)
	users := map[style]string{}
	for name, s := range first.of {
		expect.True(t, users[s] == "" && again.style(name) == s && s != grey, name, s, "is of", users[s], "and", again.style(name))
		users[s] = name
	}
	expect.Equal(t, len(users), styleCount, "styles")
	few, same := newColours(), 0
	few.assign(holders(colourCount))
	for name, s := range few.of {
		expect.True(t, s.Pattern() == "", name, s.Class())
		alone := newColours()
		alone.assign(map[string]uint64{name: 0})
		if alone.style(name) == s {
			same++
		}
	}
	expect.True(t, same >= colourCount/2, "only", same, "users have the same colour without the others")
	expect.Equal(t, style(3).Class()+","+style(11).Class()+","+style(19).Class()+","+grey.Class(), "c3,c3 striped,c3 dotted,cx", "classes")
}

// The users that hold most have colours. Each keeps its own while others come and go, and while it is
// not far behind.
func TestColoursStay(t *testing.T) {
	held := holders(40)
	c := newColours()
	c.assign(held)
	last, next := webtest.User(styleCount-1), webtest.User(styleCount)
	first := c.style(last)
	expect.Must(t, first != grey && c.style(next) == grey && len(c.of) == styleCount, c.of)
	held[next] = 78 * webtest.GiB // a little more than the last one
	c.assign(held)
	expect.True(t, c.style(last) == first && c.style(next) == grey, "it flickers", c.of)
	held[next] = 200 * webtest.GiB // it comes first, and the last gives its colour up
	c.assign(held)
	expect.True(t, c.style(next) == first && c.style(last) == grey && c.style(webtest.User(0)) != grey && len(c.of) == styleCount, c.of)
	was := c.style(webtest.User(3))
	for n := range 40 {
		if n != 3 {
			delete(held, webtest.User(n))
		}
	}
	held["newcomer"] = webtest.GiB
	c.assign(held)
	expect.True(t, c.style(webtest.User(3)) == was && c.style("newcomer") != was && len(c.of) == 2, c.of)
}

// All UIDs that are delegated to a user are that user.
func TestDelegatedUsers(t *testing.T) {
	before := subUIDOwner
	t.Cleanup(func() { subUIDOwner = before })
	subUIDOwner = func(uid int) (string, bool) { return "alice", uid >= 100000 }
	m := webtest.SharedMachine(2, 1)
	for n := range 30 {
		j := webtest.Job(100+n, n%2, 1)
		j.UID, j.Owner = 100000+n, fmt.Sprint(100000+n)
		m.Jobs = append(m.Jobs, j)
	}
	h := newHub(Options{})
	u := h.holdingsOf(m)
	expect.True(t, len(u.all) == 1 && u.jobs["alice"] == len(m.Jobs), u.jobs)
}

// The legend has each user once, with totals, devices and a name for screen readers.
func TestUsers(t *testing.T) {
	m := webtest.SharedMachine(16, 30)
	m.Outside = []machine.Outside{{Device: 3, PID: 7, UID: 2000, User: "zoe", Used: 10 * webtest.GiB}}
	h := newHub(Options{})
	u := h.holdingsOf(m)
	h.colours.assign(u.held())
	v := h.users(m, u)
	expect.True(t, len(v.Users) == shownUsers && len(v.Users)+len(v.More) == 31 && len(v.Rest) == 2, len(v.Users), len(v.More), v.Rest)
	find := func(name string) (out userView) {
		for _, line := range append(v.Users, v.More...) {
			if line.Name == name {
				out = line
			}
		}
		return out
	}
	alice := find("alice")
	expect.Equal(t, alice.Summary, "alice: 104 GiB of 128 GiB on GPU 0–5, 3 jobs", "a user")
	expect.True(t, find("zoe").Class == "outside" && find("zoe").Of == "in no job", find("zoe"))
	text := render("users", v)
	expect.True(t, strings.Contains(text, `data-user="alice" aria-pressed="false" aria-label="alice: 104 GiB`) && strings.Contains(text, "19 more users: "), text[:400])
	for numbers, want := range map[string][]int{"GPU 0–3, 7": {7, 0, 1, 3, 2}, "GPU 5": {5}, "GPU 1–2": {1, 2}, "": nil, "all GPUs": {0, 1, 2, 3, 4, 5, 6, 7}} {
		expect.Equal(t, deviceNumbers(want, 8), numbers, "devices")
	}
	// On a user's own page each job has a colour.
	own := newHub(Options{Viewer: "alice"})
	u = own.holdingsOf(m)
	expect.True(t, u.all["alice"] == nil && u.all["notebook"] != nil && own.users(m, u).ByJob, u.jobs)
	// A page for everybody has no user.
	public := newHub(Options{Public: true})
	expect.True(t, !strings.Contains(render("users", public.users(m, public.holdingsOf(m))), "alice"), "a user is on the public page")
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
	m.Jobs[2].Owner = "bob" // on the same device as the first, of alice
	now := time.Now()
	h := newHub(Options{})
	c := h.chart
	expect.True(t, c.stale(now), "it has a history")
	h.seedChart(m, webtest.Past(m, now.Add(-10*time.Second)))
	h.addSample(m, now)
	h.addSample(m, now)
	expect.Must(t, !c.stale(now) && !c.isDue(now) && len(c.samples) >= slotCount-4, len(c.samples), "samples")
	h.colours.assign(h.holdingsOf(m).held())
	v := c.view(&m.Devices[0], h.colours)
	expect.True(t, len(v.Areas) == 3 && v.Areas[0].Class == "rest" && !v.Empty, v.Areas) // two users, and what is not theirs
	for _, a := range v.Areas[1:] {
		expect.True(t, a.Class == h.colours.style(a.Name).Class() && (a.Name == "alice" || a.Name == "bob"), a.Name, a.Class)
	}
	for range 400 {
		now = now.Add(slotTime)
		h.addSample(m, now)
	}
	expect.Equal(t, len(c.samples), slotCount, "samples")
}

// A GPU that has failed does not look free.
func TestFailedGPU(t *testing.T) {
	m := webtest.Machine(1, 2, 1)
	m.Devices[0].Failed, m.Devices[0].Used = true, 0
	h := newHub(Options{})
	v := h.gpu(m, &m.Devices[0], h.holdingsOf(m), false)
	expect.True(t, v.Failed && strings.HasPrefix(v.Summary, v.Name+" does not answer;"), v.Summary)
	text := render("gpu", v)
	expect.True(t, strings.Contains(text, ">does not answer<") && !strings.Contains(text, " free<"), text)
}

// A bar has the users in it, what is outside, and limits; the device ends where it is overbooked.
func TestBar(t *testing.T) {
	m := webtest.Machine(1, 30, 1)
	for n := range m.Jobs {
		m.Jobs[n].Owner, m.Jobs[n].UID = webtest.User(n/2), 1000+n/2 // each has two jobs
	}
	m.Jobs[3].Devices[0].Used = 40 * webtest.GiB // of bob
	m.Outside = []machine.Outside{{PID: 7, UID: 2000, User: "zoe", Used: 10 * webtest.GiB, Name: "other"}}
	m.Devices[0].Used, m.Devices[0].Rations = 70*webtest.GiB, 280*webtest.GiB
	h := newHub(Options{})
	draw := func() gpuView {
		u := h.holdingsOf(m)
		h.colours.assign(u.held())
		return h.gpu(m, &m.Devices[0], u, false)
	}
	v := draw()
	expect.True(t, v.CardAt == "66.67%" && v.Cut && v.OverBy == "140 GiB" && v.Used == "70 GiB" && v.Number == "70" && v.Free == "70 GiB" && v.Open, v)
	find := func(label string) (out part) {
		for _, p := range v.Bar {
			if p.Label == label {
				out = p
			}
		}
		return out
	}
	bob := find("bob")
	expect.True(t, len(v.Bar) == 15+2 && bob.Class == h.colours.style("bob").Class() && len(bob.Jobs) == 2 && bob.Jobs[0].Title == "job-3" && bob.Fits == 10 && bob.Short == "bo",
		len(v.Bar), "parts", bob)
	expect.True(t, len(v.Rations) == 14 && strings.Contains(v.Summary, "zoe (in no job): 10 GiB, not counted: ") && strings.Contains(v.Summary, "bob: 40"), v.Summary)
	// More users than colours share a part.
	for n := range m.Jobs {
		m.Jobs[n].Owner, m.Jobs[n].UID = webtest.User(n), 1000+n
	}
	v = draw()
	expect.True(t, len(v.Bar) == styleCount+3 && find("6 more users").Class == noColour && len(v.Rations) == styleCount+1, len(v.Bar), find("6 more users"))
	// Without a driver the devices are those that the jobs know.
	m.Devices = nil
	d, derived := withDevices(m)
	expect.True(t, derived && len(d.Devices) == 1 && d.Devices[0].Total == 140*webtest.GiB && d.Devices[0].Jobs == 30 && d.Devices[0].Used >= 40*webtest.GiB,
		"got", d.Devices)
}

// The style sheet has a rule for each width at which a label fits.
func TestWidths(t *testing.T) {
	text, err := files.ReadFile("files/style.css")
	expect.OK(t, err)
	for _, w := range widths {
		rule := fmt.Sprintf("@container (min-width: %drem) { .bar .fits-%d { display: inline; } .bar .until-%d { display: none; } }", w, w, w)
		expect.True(t, strings.Contains(string(text), rule), "there is no", rule)
	}
	expect.Equal(t, strings.Count(string(text), ".bar .fits-"), len(widths), "rules")
	for label, want := range map[string]int{"al": 8, "alice": 12, strings.Repeat("x", 39): 80, strings.Repeat("x", 40): 0} {
		expect.Equal(t, fits(label, 0.25), want, "the width of a bar for a label of", label)
	}
}
