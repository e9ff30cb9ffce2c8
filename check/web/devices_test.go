package web

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"ration/check/expect"
	"ration/check/webtest"
	"ration/internal/limit"
	"ration/internal/node"
	"ration/internal/web"
	"ration/machine"
)

// box is where an element is on the page.
type box struct{ Top, Bottom, Left, Right, Height float64 }

func (b *tab) box(selector string) (out box) {
	b.t.Helper()
	b.get(fmt.Sprintf(`(({top, bottom, left, right, height}) => ({top, bottom, left, right, height}))(document.querySelector(%s).getBoundingClientRect())`, quote(selector)), &out)
	return out
}

// Sixteen devices and the first jobs are on one screen; on a phone a device is one line.
func TestManyDevices(t *testing.T) {
	m := webtest.SharedMachine(16, 12)
	_, url := madeUp(t, m, webtest.Past(m, time.Now()), func(o *web.Options) { o.MayChange = func(*machine.Job) bool { return true } })
	b := open(t, url, as(1440, 900, "light", true))
	b.isLive()
	for _, theme := range []string{"light", "dark"} {
		b.run(as(1440, 900, theme, true))
		expect.True(t, b.box("#jobs > .job:nth-child(4)").Bottom <= 900, theme, "the fourth job ends at", b.box("#jobs > .job:nth-child(4)").Bottom)
		b.run(as(390, 844, theme, true))
		for _, id := range []string{"#gpu-0", "#gpu-15"} {
			h := b.box(id).Height
			expect.True(t, h >= 40 && h <= 48, theme, id, "is", h, "high")
		}
		end := b.box("#devices").Bottom
		expect.True(t, end <= 1300, theme, "the devices end at", end)
	}
}

// Long names of users, jobs and devices make no page wider than its window, and no line higher.
func TestLongNames(t *testing.T) {
	m := webtest.SharedMachine(4, 6)
	long := strings.Repeat("long-name-", 12)
	for i := range m.Jobs {
		m.Jobs[i].Owner, m.Jobs[i].Name = m.Jobs[i].Owner+long, long+m.Jobs[i].Name
	}
	m.Devices[1].Name = long
	m.Outside = []machine.Outside{{Device: 2, PID: 7, UID: 2000, User: long, Name: long, Used: webtest.GiB}}
	_, url := madeUp(t, m, node.History{}, nil)
	b := open(t, url)
	b.isLive()
	for _, size := range sizes {
		b.run(as(size.width, size.height, "light", true))
		for _, open := range []string{"false", "true"} {
			b.get(`document.querySelectorAll("details").forEach(d => d.open = `+open+`)`, nil)
			expect.Equal(t, b.text(`document.documentElement.scrollWidth <= innerWidth`), "true", size.name, "open", open, "fits")
		}
		b.get(`document.querySelectorAll("details").forEach(d => d.open = false)`, nil)
		line, first := b.box("[data-user]").Height, b.box("#gpu-0").Height
		expect.True(t, line <= 40 && first <= 100, size.name, "a user is", line, "high, a device", first)
	}
}

// A device opens for its details; what the reader has opened or closed stays so.
func TestDeviceOpens(t *testing.T) {
	m := webtest.SharedMachine(16, 12)
	source, url := madeUp(t, m, webtest.Past(m, time.Now()), nil)
	b := open(t, url, as(1440, 900, "light", true))
	b.isLive()
	expect.Equal(t, b.text(`document.querySelectorAll(".gpu > details[open]").length`), "0", "open devices")
	b.run(chromedp.Focus("#gpu-5 summary"), chromedp.KeyEvent(kb.Enter))
	b.wait(`document.querySelector("#gpu-5 > details").open && document.querySelector("#chart-5 .area")`)
	b.shows("#gpu-5 .legend", "mallory")
	wide, all := b.box("#gpu-5"), b.box("#devices")
	expect.True(t, wide.Left == all.Left && wide.Right == all.Right, "the open device is from", wide.Left, "to", wide.Right)
	source.Change(func(m *machine.Machine) { m.Devices[5].Used += webtest.GiB })
	b.shows("#gpu-5 .use", "91 of 140 GiB")
	expect.Equal(t, b.text(`document.querySelector("#gpu-5 > details").open`), "true", "open")

	// With two devices the details are open, and a reader may close them. On a phone they are closed.
	source, url = madeUp(t, busy(), node.History{}, nil)
	b = open(t, url, as(1440, 900, "light", true))
	b.isLive()
	expect.Equal(t, b.text(`document.querySelectorAll(".gpu > details[open]").length`), "2", "open devices")
	b.run(chromedp.Click("#gpu-0 summary"))
	source.Change(func(m *machine.Machine) { m.Devices[0].Used += 10 * webtest.GiB })
	b.shows("#gpu-0 .use", "95.7 of 140 GiB")
	expect.Equal(t, b.text(`document.querySelector("#gpu-0 > details").open`), "false", "open")
	phone := open(t, url, as(390, 844, "light", true))
	phone.isLive()
	expect.Equal(t, phone.text(`document.querySelectorAll(".gpu > details[open]").length`), "0", "open devices on a phone")
}

// A user of the legend shows that user's parts and jobs only, with the keyboard too, and again all.
func TestOneUser(t *testing.T) {
	m := webtest.SharedMachine(16, 12)
	source, url := madeUp(t, m, node.History{}, nil)
	b := open(t, url, as(1440, 900, "light", true))
	b.isLive()
	jobs := func(selector string) string {
		return b.text(`[...document.querySelectorAll("` + selector + `")].map(e => e.dataset.of).filter((u, i, all) => all.indexOf(u) === i).sort().join()`)
	}
	b.run(chromedp.Focus(`[data-user="alice"]`), chromedp.KeyEvent(" "))
	b.wait(`document.querySelector("[data-user=alice]").getAttribute("aria-pressed") === "true"`)
	expect.Equal(t, jobs("#jobs > .job:not([hidden])"), "alice", "jobs of")
	expect.Equal(t, jobs("#devices .part:not([data-dim])"), "alice", "parts of")
	source.Change(func(m *machine.Machine) {
		m.Jobs[0].Devices[0].Used += webtest.GiB
		m.Devices[0].Used += webtest.GiB
	})
	b.shows("#gpu-0 .use", "16 of 140 GiB")
	expect.Equal(t, jobs("#jobs > .job:not([hidden])")+jobs("#devices .part:not([data-dim])"), "alicealice", "after a change")
	expect.Equal(t, b.text(`document.activeElement.dataset.user`), "alice", "the focus is on")
	// A link to a job of another user shows all again.
	b.get(`location.hash = "#" + document.querySelector("#jobs > .job[hidden]").id`, nil)
	b.wait(`document.querySelectorAll("#jobs > .job[hidden]").length === 0 && !document.querySelector("#devices [data-dim]")`)
}

// Jobs are sorted by each column, in both directions, by keys; also jobs that come later, and after a
// reload.
func TestSort(t *testing.T) {
	m := busy()
	source, url := madeUp(t, m, node.History{}, nil)
	b := open(t, url, as(1440, 900, "light", true))
	b.isLive()
	names := func() string {
		return b.text(`[...document.querySelectorAll("#jobs > .job")].map(e => e.dataset.of + "/" + e.dataset.name).join()`)
	}
	usual := names()
	press := func(column string) string {
		b.run(chromedp.Focus(fmt.Sprintf(`[data-sort=%q]`, column)), chromedp.KeyEvent(kb.Enter))
		return names()
	}
	const byUser = "alice/llama-finetune,alice/notebook,bob/embed-nightly,bob/asr-train,carol/serve-vllm,dave/diffusion-eval"
	press("name")
	expect.Equal(t, press("user"), byUser, "by user, then as usual")
	b.shows("#said", "Sorted by User, ascending")
	expect.Equal(t, b.text(`document.querySelector("[data-sort=user]").ariaPressed + document.querySelector("[data-sort=name]").ariaPressed`), "truefalse", "pressed")
	expect.True(t, strings.HasPrefix(press("user"), "dave/diffusion-eval,carol/"), "not descending", names())
	expect.Equal(t, press("user"), usual, "the usual order")
	for column, first := range map[string]string{"used": "carol/serve-vllm", "share": "carol/serve-vllm", "refused": "alice/llama-finetune", "name": "bob/asr-train", "since": "bob/asr-train"} {
		if got := press(column); column != "since" { // all started in the same second
			expect.True(t, strings.HasPrefix(got, first+","), "by", column, got)
		}
	}
	press("user")
	b.get(`document.activeElement.blur()`, nil)
	source.Change(func(m *machine.Machine) {
		j := webtest.Job(300, 0, 1)
		j.Name, j.Owner, j.UID = "new", "bea", 1010
		m.Jobs = append(m.Jobs, j)
	})
	b.wait(`document.querySelectorAll("#jobs > .job").length === 7`)
	b.wait(`document.querySelector("#jobs > .job:nth-child(3)").dataset.of === "bea"`)
	again := open(t, strings.TrimSuffix(strings.SplitAfter(url, "/test/")[0], " ")+"?token=0123456789abcdef&sort=-user", as(1440, 900, "light", true))
	again.isLive()
	again.wait(`document.querySelector("#jobs > .job").dataset.of === "dave"`)
	expect.Equal(t, again.text(`location.search`), "?sort=-user", "the address has")
}

// The limit form shows the limits of today, and no answer is lost.
func TestLimitFormSays(t *testing.T) {
	answers := make(chan struct{})
	source, url := madeUp(t, busy(), node.History{}, func(o *web.Options) {
		o.MayChange = func(*machine.Job) bool { return true }
		o.SetLimit = func(j machine.Job, _ limit.Limits) (string, error) {
			<-answers
			return "", errors.New("the device is smaller")
		}
	})
	b := open(t, url, as(1440, 900, "light", true))
	b.isLive()
	b.get(jobSelector("serve-vllm")+`.querySelector("details").open = true`, nil)
	id := "#" + b.text(jobSelector("serve-vllm")+".id")
	b.shows(id+" .now tbody tr", "GPU 160 GiB52 GiB30 %50 %")
	expect.Equal(t, b.text(`document.querySelector("`+id+` [name=memory]").placeholder`), "60 GiB", "the field shows")
	b.run(chromedp.SendKeys(id+" [name=memory]", "200g\r"))
	b.shows(id+" output", "Changing…")
	answers <- struct{}{}
	b.shows(id+" output.failed", "the device is smaller")
	expect.Equal(t, b.text(`document.querySelector("`+id+` [name=memory]").value`), "200g", "what was typed is")
	b.run(chromedp.SendKeys(id+" [name=memory]", "\r"))
	b.shows(id+" output", "Changing…")
	source.Change(func(m *machine.Machine) { m.Jobs[1].State = machine.Ended }) // its form goes
	b.wait(`document.querySelector("#ended > .job[data-name=serve-vllm]") && !document.querySelector("` + id + ` form")`)
	answers <- struct{}{}
	b.shows("#late-answer.failed", "the device is smaller")
}
