package web

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"ration/check/expect"
	"ration/check/webtest"
	"ration/internal/node"
	"ration/internal/web"
	"ration/machine"
)

// With 200 jobs of 8 processes each, a change is drawn once, where it is and nowhere else, and what is
// the reader's own stays: an open job, the focus, what is typed.
func TestManyJobs(t *testing.T) {
	m := webtest.Machine(4, 200, 8)
	source, url := madeUp(t, m, webtest.Past(m, time.Now()), func(o *web.Options) { o.MayChange = func(*machine.Job) bool { return true } })
	b := open(t, url, as(1280, 800, "light", false))
	b.isLive()
	b.wait(`document.querySelectorAll("#jobs > .job").length === 200`)
	field := jobSelector("job-7") + `.querySelector("[name=memory]")`
	b.get(jobSelector("job-7")+`.querySelector("details").open = true; `+field+`.value = "12g"; `+field+`.focus()`, nil)

	b.get(`window.elsewhere = 0; new MutationObserver(all => {
		const other = (el) => el.closest(".job") !== `+jobSelector("job-7")+` && !el.closest("time"); // the clock changes these
		window.elsewhere += all.filter(m => m.target.isConnected && other(m.target.nodeType === 1 ? m.target : m.target.parentElement)).length;
	}).observe(document.getElementById("jobs"), { childList: true, subtree: true, characterData: true, attributes: true }); 0`, nil)
	const changes = 20
	var before, after int
	b.get(`Number(document.body.dataset.draws || 0)`, &before)
	began := time.Now()
	for n := range changes {
		source.Change(func(m *machine.Machine) { webtest.Refuse(&m.Jobs[7], time.Now(), uint64(100+n)*webtest.GiB) })
		b.wait(fmt.Sprintf(`%s.querySelector(".tail").textContent.includes("%d refusal")`, jobSelector("job-7"), n+1))
		b.wait(fmt.Sprintf(`document.querySelector("#events .refusal p").textContent.includes("asked for %d GiB")`, 100+n))
	}
	b.get(`Number(document.body.dataset.draws || 0)`, &after)
	clock := int(time.Since(began)/(5*time.Second)) + 2 // the charts move on by themselves
	drawn := after - before
	expect.True(t, drawn >= changes && drawn <= changes+clock, changes, "changes were drawn", drawn, "times")
	expect.Equal(t, b.text(`window.elsewhere`), "0", "nodes of other jobs were touched")
	expect.Equal(t, b.text(`document.activeElement === `+field+` && document.activeElement.value`), "12g", "what was typed is")
	expect.Equal(t, b.text(jobSelector("job-7")+`.querySelector("details").open`), "true", "the job is closed")
	b.shows("#said", "job-7")

	// It goes to those that have ended, and another takes its place.
	source.Change(func(m *machine.Machine) {
		m.Jobs[7].State, m.Jobs[7].Exit = machine.Ended, &machine.Exit{Status: 3}
		m.Jobs = append(m.Jobs, webtest.Job(500, 0, 8))
	})
	b.wait(`document.querySelectorAll("#jobs > .job").length === 200 && document.querySelector("#ended > .job")?.dataset.name === "job-7"`)
	b.shows("#ended .job", "exit status 3")
	b.shows("#jobs .job", "job-500")
}

// Names that tenants choose are text, on the page and in what is sent later.
func TestHostileNames(t *testing.T) {
	m := webtest.Machine(1, 2, 2)
	source, url := madeUp(t, m, node.History{}, nil)
	b := open(t, url)
	b.isLive()
	source.Change(func(m *machine.Machine) {
		for i := range m.Jobs {
			j := &m.Jobs[i]
			j.Name, j.Owner, j.Command = webtest.Hostile, webtest.Hostile, []string{webtest.Hostile}
			j.Processes[0].Name, j.Processes[0].User, j.Processes[0].Container = webtest.Hostile, webtest.Hostile, webtest.Hostile
		}
		m.Outside = []machine.Outside{{PID: 1, User: webtest.Hostile, Name: webtest.Hostile, Used: webtest.GiB}}
		m.Findings = []machine.Finding{{Kind: machine.Drift, Path: m.Jobs[0].Path, Text: webtest.Hostile, Remedy: webtest.Hostile}}
		webtest.Kill(&m.Jobs[0], time.Now())
	})
	b.shows(".job-name", webtest.Hostile)
	b.shows("#outside td", webtest.Hostile)
	b.shows("#findings", webtest.Hostile)
	b.shows("#events", webtest.Hostile)
	check := func(b *tab) {
		t.Helper()
		expect.Equal(t, b.text(`document.title + document.querySelectorAll("img, b, script:not([src])").length`), "gpu1 · ration0",
			"the page is")
	}
	check(b)
	again := open(t, url)
	again.isLive()
	again.shows(".job-name", webtest.Hostile)
	check(again)
}

// The policy keeps even what would slip through from running.
func TestPolicyHolds(t *testing.T) {
	_, url := madeUp(t, webtest.Machine(1, 1, 1), node.History{}, nil)
	b := open(t, url)
	b.isLive()
	var got string
	b.run(chromedp.Evaluate(`new Promise(done => {
		document.addEventListener("securitypolicyviolation", e => done(e.effectiveDirective));
		const s = document.createElement("script");
		s.textContent = "document.title = 'harm'";
		document.body.append(s);
	})`, &got, awaited))
	title := b.text("document.title")
	expect.True(t, strings.HasPrefix(got, "script-src") && title == "gpu1 · ration", got, title)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.trouble = nil // it was refused, as it should be
}
