package web

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"ration/check/expect"
	"ration/check/webtest"
	"ration/internal/job"
	"ration/internal/node"
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

// A job whose ration is lent says so, and since when it sleeps. Rations that the policy refused count: those of all users on
// top, and a user's own with the job of that user, also when the job has not changed.
func TestPolicyOnThePage(t *testing.T) {
	m := webtest.Machine(1, 1, 1)
	j := &m.Jobs[0]
	j.Owner, j.UID, j.Name, j.Path = "ada", 4711, "ada", job.OfUserPath(4711)
	j.Sleep, j.RationLent, j.SleepSince = machine.Asleep, true, time.Date(2026, 11, 17, 9, 8, 7, 0, time.UTC)
	for i := range j.Devices {
		j.Devices[i].Limit, j.Devices[i].Refused = 0, 0
	}
	m.Denied = []machine.Denied{{UID: 4711, User: "ada", Count: 1}, {UID: 4711, User: "ada", Count: 3}, {UID: 4712, User: "bob", Count: 4}}
	_, text, _ := serve(t, m, nil).ask(http.MethodGet, "", nil, nil)
	for _, want := range []string{`<span class="state-word">asleep, ration lent</span>`, "its ration is lent to others, and it wakes when there is room for it.</p>", "2026-11-17T09:08:07Z", `<span class="bad">3 refusals</span>`} {
		expect.True(t, strings.Contains(text, want), "there is no", want)
	}
	h := newHub(Options{})
	figures := h.top(m, h.holdingsOf(m)).Figures
	expect.True(t, slices.Contains(figures, figure{"7", "refusals"}), figures)
	drawn := drawnJob{job: *j, denied: node.DeniedTo(m.Denied, j)}
	m.Denied = append(m.Denied, machine.Denied{UID: 4711, User: "ada", Count: 4})
	expect.True(t, drawn.same(j, drawn.style, false, 3) && !drawn.same(j, drawn.style, false, node.DeniedTo(m.Denied, j)), "it is not drawn again")
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
