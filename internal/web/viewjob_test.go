package web

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"ration/check/expect"
	"ration/check/webtest"
	"ration/machine"
)

// The form shows the limits and the use of today, and has each device of a range of unused ones. If
// the viewer may not change them, the page says so, and why.
func TestFormShowsLimits(t *testing.T) {
	m := webtest.Machine(4, 1, 1)
	j := &m.Jobs[0]
	j.Devices[0].Used, j.Devices[0].Limit = 46*webtest.GiB, 60*webtest.GiB
	j.Devices[0].Compute = &machine.Compute{Share: 30}
	for d := 1; d < 4; d++ { // as one range on the page
		j.Devices = append(j.Devices, machine.Device{Device: d, UUID: m.Devices[d].UUID, Limited: true, Limit: 20 * webtest.GiB, Total: 140 * webtest.GiB})
	}
	page := func(change func(*Options)) string {
		_, text, _ := serve(t, m, change).ask(http.MethodGet, "", nil, nil)
		return text
	}
	text := page(func(o *Options) { o.MayChange = func(*machine.Job) bool { return true } })
	for _, want := range []string{
		`<th scope="row">GPU 0</th><td class="n"><strong>60 GiB</strong></td><td class="n">46 GiB</td><td class="n">30 %</td><td class="n">none</td>`,
		`<th scope="row">GPU 1–3</th><td class="n"><strong>20 GiB</strong></td><td class="n">0 B</td><td class="n">none</td><td class="n">none</td>`,
		`<option value="0">GPU 0 (now 60 GiB)</option>`, `<option value="1">GPU 1 (now 20 GiB)</option>`, `<option value="3">GPU 3 (now 20 GiB)</option>`,
		`name="memory" size="12" autocomplete="off" spellcheck="false" placeholder="differs"`, `name="cap" size="10" autocomplete="off" spellcheck="false" placeholder="none"`,
	} {
		expect.True(t, strings.Contains(text, want), "there is no", want)
	}
	for why, change := range map[string]func(*Options){
		"This page changes nothing: it was started with --read-only.": nil,
		"Only root can change these limits.":                          func(o *Options) { o.Viewer, o.MayChange = "alice", func(*machine.Job) bool { return false } },
		"You may not change the limits of this job.":                  func(o *Options) { o.MayChange = func(*machine.Job) bool { return false } },
	} {
		text := page(change)
		expect.True(t, strings.Contains(text, why) && strings.Contains(text, "<strong>60 GiB</strong>") && !strings.Contains(text, "<form"), why)
	}
	j.State = machine.Ended
	expect.True(t, !strings.Contains(page(nil), "--read-only"), "a job that has ended has limits")
}

// A job's line begins with its user, and has all its devices in one bar; each has a line of its own
// below. The script can sort by what it shows.
func TestJobLine(t *testing.T) {
	m := webtest.SharedMachine(8, 1)
	at := len(m.Jobs) - 1 // on four devices
	m.Jobs[at].Devices[1].Refused = 3
	m.Jobs[at].Name = "alice/serve"
	h := newHub(Options{})
	h.colours.assign(h.holdingsOf(m).held())
	v := h.job(m, &m.Jobs[at], h.colours.style("alice"), false)
	expect.True(t, v.Owner == "alice" && v.Name == "serve" && len(v.Lines) == 1 && len(v.More) == 4, v.Name, v.Lines)
	line := v.Lines[0]
	expect.Equal(t, fmt.Sprint(line.Label, " ", line.Used, " ", line.Of, " ", line.Share, " ", line.W), "GPU 2–5 92 GiB of 108 GiB 85 % 83.48%", "the line")
	expect.Equal(t, v.Sort, sortKeys{Since: m.Jobs[at].Started.Unix(), Used: 92 * webtest.GiB, Refused: 3, Share: 851}, "sorted by")
	text := render("job", v)
	expect.True(t, strings.Contains(text, `<span class="owner">alice</span> <span class="job-name">serve</span>`) && strings.Contains(text, `data-of="alice" data-name="serve"`), text[:500])
	// A job without a limit on one of its devices has none for all.
	m.Jobs[at].Devices[0].Limited = false
	v = h.job(m, &m.Jobs[at], grey, false)
	expect.True(t, v.Lines[0].Of == "no limit" && v.Lines[0].Share == "" && v.Lines[0].W == "16.10%", v.Lines[0])
	// On a user's own page no user is named.
	own := newHub(Options{Viewer: "alice"})
	expect.Equal(t, own.job(m, &m.Jobs[at], grey, false).Owner, "", "the user")
}

// A job of one GPU is on no other, for its user or its own line; the form can open another.
func TestJobOfOneGPU(t *testing.T) {
	m := webtest.Machine(2, 1, 1)
	j := &m.Jobs[0]
	j.Devices = append(j.Devices, machine.Device{Device: 1, UUID: m.Devices[1].UUID, Limited: true, Total: 140 * webtest.GiB})
	h := newHub(Options{Viewer: "alice"})
	u := h.holdingsOf(m)
	legend := h.users(m, u).Users
	expect.True(t, len(legend) == 1 && legend[0].GPUs == "GPU 0" && legend[0].Of == "of 8 GiB" && len(u.devices[1]) == 0, legend)
	v := h.job(m, j, grey, true)
	expect.True(t, len(v.Lines) == 1 && len(v.More) == 0 && len(v.Limits) == 1 && v.Now.Memory == "8 GiB", v.Lines, v.More, v.Limits, v.Now)
	expect.True(t, len(v.Devices) == 2 && v.Devices[1] == (limitDevice{1, "GPU 1", "0 B"}), v.Devices)
}

// The totals are sums over the machine's devices, and of jobs that have not ended.
func TestTotals(t *testing.T) {
	m := &machine.Machine{
		Devices: []machine.GPU{{Used: 1 << 30, Total: 10 << 30, Rations: 4 << 30}, {Device: 1, Used: 2 << 30, Total: 10 << 30, Rations: 8 << 30}},
		Jobs: []machine.Job{
			{Name: "train", State: machine.Running, Processes: make([]machine.Process, 3), Devices: []machine.Device{{Refused: 2}, {Device: 1, Refused: 3}}},
			{Name: "old", State: machine.Ended, Devices: []machine.Device{{Refused: 9}}},
		},
	}
	h := newHub(Options{})
	expect.Equal(t, fmt.Sprint(h.top(m, h.holdingsOf(m)).Figures), "[{3 GiB used of 20 GiB} {12 GiB handed out} {1 job} {3 processes} {5 refusals}]")
}
