package web

import (
	"net/http"
	"strings"
	"testing"

	"ration/check/expect"
	"ration/check/webtest"
	"ration/internal/usage"
	"ration/machine"
)

// The page says which jobs sleep, how much they have put aside, and why a job cannot.
func TestJobsThatSleep(t *testing.T) {
	m := webtest.Machine(1, 2, 1)
	nb, stuck := &m.Jobs[0], &m.Jobs[1]
	nb.Owner, nb.UID = "ada", 4711
	nb.Sleep, nb.Devices[0].Used, nb.Devices[0].Aside, nb.Devices[0].Peak = machine.Asleep, 0, 12*webtest.GiB, 13*webtest.GiB
	nb.Devices[0].Limit = 16 * webtest.GiB
	stuck.SleepAfter, stuck.CannotSleep = 600_000, "it cannot sleep: pid 7 (a<b) shares memory"
	_, text, _ := serve(t, m, nil).ask(http.MethodGet, "", nil, nil)
	for _, want := range []string{`<span class="state-word">asleep</span></span>`, `<span class="aside">12 GiB put aside</span>`, "<p>12 GiB of GPU memory is in host memory.</p>",
		`title="Should sleep, and cannot: pid 7 (a&lt;b) shares memory.">cannot sleep</span>`, `<span class="state-word">running</span>`,
		"should sleep, and cannot: pid 7 (a&lt;b) shares memory.</p></li>"} {
		expect.True(t, strings.Contains(text, want), "there is no", want)
	}
	h := newHub(Options{})
	share := h.holdingsOf(m).all[h.holder(nb)]
	expect.True(t, share.asleep && share.limits == 0 && h.userLine(m, h.holdingsOf(m), share).Of == "asleep", "its limit is handed out", share)
	stuck.CannotSleep = ""
	_, text, _ = serve(t, m, nil).ask(http.MethodGet, "", nil, nil)
	expect.True(t, strings.Contains(text, "<p>Sleeps after 10 min without work on the GPU.</p>") && !strings.Contains(text, ">cannot sleep<"), "a job that may fall asleep")
}

// A report has a column for time asleep only if a job slept.
func TestReportAsleep(t *testing.T) {
	r := week(usage.ByUser, []usage.Line{{User: "ada"}, {User: "bob"}})
	expect.True(t, !strings.Contains(writeReport(t, r), "sleep"), "nobody slept")
	r.Lines[1].Asleep, r.Total.Asleep = 9000, 9000
	text := writeReport(t, r)
	for _, want := range []string{`<th scope="col" class="n">Asleep</th>`, `<td class="n">2.50 h</td>`, `<dt>asleep</dt><dd>2.50 h</dd>`} {
		expect.True(t, strings.Contains(text, want), "there is no", want)
	}
}
