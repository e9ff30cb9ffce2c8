package web

import (
	"context"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"ration/check/expect"
	"ration/check/webtest"
	"ration/internal/node"
	"ration/internal/web"
	"ration/machine"
)

// madeUp serves a page of a machine that is made up.
func madeUp(t *testing.T, m *machine.Machine, past node.History, change func(*web.Options)) (*webtest.Source, string) {
	t.Helper()
	source := webtest.NewSource(m, past)
	opts := web.Options{Source: source, Version: "0.0.0", Host: "gpu1", Token: "0123456789abcdef", ID: "test", MaxStreams: 4}
	if change != nil {
		change(&opts)
	}
	if opts.Public {
		opts.ID = ""
	}
	s := httptest.NewServer(web.New(opts))
	t.Cleanup(func() {
		s.CloseClientConnections() // a stream does not end by itself
		s.Close()
	})
	if opts.Public {
		return source, s.URL + "/"
	}
	return source, s.URL + "/test/?token=0123456789abcdef"
}

// busy is a machine on which there is something of everything.
func busy() *machine.Machine {
	m := webtest.Machine(2, 6, 3)
	names := []string{"llama-finetune", "serve-vllm", "embed-nightly", "notebook", "diffusion-eval", "asr-train"}
	owners := []string{"alice", "carol", "bob", "alice", "dave", "bob"}
	used := []uint64{46, 52, 18, 6, 31, 12}
	limits := []uint64{60, 60, 24, 10, 48, 40}
	for i := range m.Devices {
		m.Devices[i].Used, m.Devices[i].Rations = webtest.GiB, 0
	}
	for i := range m.Jobs {
		j := &m.Jobs[i]
		j.Name, j.Owner, j.Path = names[i], owners[i], "/run/ration/"+names[i]+"/region"
		d := &j.Devices[0]
		d.Used, d.Limit, d.Peak = used[i]*webtest.GiB, limits[i]*webtest.GiB, (used[i]+2)*webtest.GiB
		for n := range j.Processes {
			p := &j.Processes[n]
			h := &p.Holdings[0]
			h.Device, h.Context, h.Total = d.Device, 518<<20, d.Used/3
			h.Data, h.Driver = h.Total-h.Context, h.Total
			p.User = owners[i]
		}
		m.Devices[d.Device].Used += d.Used
		m.Devices[d.Device].Rations += d.Limit
	}
	m.Jobs[1].Devices[0].Compute = &machine.Compute{Share: 30, Max: 50, Round: 20000, Working: 2, Used: 42e9, Waited: 1e9}
	now := time.Now()
	webtest.Refuse(&m.Jobs[0], now.Add(-4*time.Minute), 20*webtest.GiB)
	m.Devices[0].Used -= m.Jobs[4].Processes[2].Holdings[0].Total
	webtest.Kill(&m.Jobs[4], now.Add(-2*time.Minute))
	ended := webtest.Job(9, 1, 1)
	ended.Name, ended.Owner, ended.State, ended.Processes = "tokenize", "dave", machine.Ended, nil
	ended.Ended, ended.Exit, ended.Devices[0].Used = now.Add(-6*time.Minute), &machine.Exit{Status: 1}, 0
	m.Jobs = append(m.Jobs, ended)
	m.Outside = []machine.Outside{{Device: 1, PID: 4711, UID: 1003, User: "erin", Name: "python3", Container: "docker/0123456789ab", Used: 9 * webtest.GiB}}
	m.Devices[1].Used += 9 * webtest.GiB
	m.Findings = []machine.Finding{{Kind: machine.OutsideJobs, Device: 1, PID: 4711, Text: "python3 (pid 4711) of user erin in docker/0123456789ab holds 9 GiB of device 1, and belongs to no job", Remedy: "start it with ration run, so that it has a limit"}}
	return m
}

// audit returns what is wrong with a page for people who do not see it, see it badly, or use no
// mouse: as the usual checkers do it, of what this page has.
const audit = `(() => {
  const out = [];
  const say = (what, el) => out.push(what + ": " + (el ? el.outerHTML.slice(0, 120) : ""));
  const visible = (el) => el.checkVisibility({ visibilityProperty: true, contentVisibilityAuto: false }) && !el.closest(".unseen, .skip");
  if (!document.documentElement.lang) say("no language");
  if (!document.title) say("no title");
  for (const name of ["body > header", "main", "body > footer"]) if (document.querySelectorAll(name).length !== 1) say("not one " + name);
  if (document.querySelectorAll("h1").length !== 1) say("not one h1");
  let level = 0;
  for (const h of document.querySelectorAll("h1, h2, h3, h4, h5, h6")) {
    if (!visible(h)) continue;
    const now = Number(h.localName[1]);
    if (now > level + 1) say("a heading leaves out a level", h);
    level = now;
  }
  const ids = new Set();
  for (const el of document.querySelectorAll("[id]")) {
    if (ids.has(el.id)) say("an id twice", el);
    ids.add(el.id);
  }
  for (const el of document.querySelectorAll("[aria-labelledby]")) if (!ids.has(el.getAttribute("aria-labelledby"))) say("no such label", el);
  for (const el of document.querySelectorAll("section, article")) if (!el.hasAttribute("aria-labelledby") && !el.hasAttribute("aria-label")) say("a part without a name", el);
  for (const el of document.querySelectorAll("svg")) {
    if (el.parentElement.closest("svg") || el.getAttribute("aria-hidden") === "true") continue;
    if (el.getAttribute("role") !== "img" || !el.getAttribute("aria-label")) say("a picture without a name", el);
  }
  for (const el of document.querySelectorAll("th")) if (!el.scope) say("a heading of a table without its scope", el);
  for (const a of document.querySelectorAll("a[href^='#']")) if (!ids.has(a.getAttribute("href").slice(1))) say("a link to nowhere", a);
  const colour = (text) => { // computed colours are rgb() or color(srgb ...)
    const n = text.match(/[\d.]+/g).map(Number);
    const unit = text.startsWith("color") ? 1 : 255;
    return { c: n.slice(0, 3).map((v) => v / unit), a: n.length > 3 ? n[3] : 1 };
  };
  const lum = ({ c }) => c.map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (el) => {
    for (; el; el = el.parentElement) {
      const g = colour(getComputedStyle(el).backgroundColor);
      if (g.a > 0.9) return g;
    }
    return { c: [1, 1, 1], a: 1 };
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const el = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !visible(el) || el.closest("svg, script")) continue;
    const style = getComputedStyle(el);
    const a = lum(colour(style.color)), b = lum(ground(el));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize);
    if (ratio < (size >= 24 || size >= 18.66 && style.fontWeight >= 700 ? 3 : 4.5)) say("a contrast of " + ratio.toFixed(2), el);
    if (size < 11.9) say("letters of " + size + " pixels", el);
  }
  for (const el of document.querySelectorAll("summary, button, input:not([type=hidden]), select")) {
    const box = el.getBoundingClientRect();
    if (visible(el) && box.height < 24) say("a control of " + box.height + " pixels", el);
  }
  if (document.documentElement.scrollWidth > innerWidth) say("it is wider than the window: " + document.documentElement.scrollWidth);
  return out;
})()`

// The page is fit for everybody, in each size and theme, with everything open.
func TestAccessible(t *testing.T) {
	m := busy()
	_, own := madeUp(t, m, webtest.Past(m, time.Now()), func(o *web.Options) { o.MayChange = func(*machine.Job) bool { return true } })
	_, public := madeUp(t, webtest.Machine(8, 0, 0), node.History{}, func(o *web.Options) { o.Public = true })
	_, empty := madeUp(t, webtest.Machine(0, 0, 0), node.History{}, nil)
	many := webtest.SharedMachine(16, 30)
	_, crowd := madeUp(t, many, webtest.Past(many, time.Now()), func(o *web.Options) { o.MayChange = func(*machine.Job) bool { return false } })
	for name, url := range map[string]string{"own": own, "public": public, "empty": empty, "crowd": crowd} {
		b := open(t, url)
		b.isLive()
		for _, size := range sizes {
			for _, theme := range []string{"light", "dark"} {
				for _, open := range []string{"false", "true"} {
					var wrong []string
					b.run(as(size.width, size.height, theme, true), chromedp.Evaluate(`document.querySelectorAll("details").forEach(d => d.open = `+open+`)`, nil), chromedp.Evaluate(audit, &wrong))
					expect.True(t, len(wrong) <= 0, name, size.name, theme, "open", open, lines(wrong))
				}
			}
		}
		b.named()
		if name == "own" {
			for motion, want := range map[bool]string{true: "0s", false: "0.25s, 0.25s"} {
				b.run(as(1280, 800, "light", motion))
				expect.Equal(t, b.text(`getComputedStyle(document.querySelector(".fill")).transitionDuration`), want,
					"still", motion, "it moves for")
			}
		}
	}
}

// named checks what the browser tells a screen reader: that everything one can use, and every
// picture and part, has a name.
func (b *tab) named() {
	b.t.Helper()
	roles := []string{"button", "link", "textbox", "searchbox", "combobox", "DisclosureTriangle", "image", "region", "article", "table", "heading"}
	found := map[string]int{}
	b.run(chromedp.ActionFunc(func(ctx context.Context) error {
		nodes, err := accessibility.GetFullAXTree().Do(ctx)
		for _, n := range nodes {
			if n.Ignored || n.Role == nil || n.Role.Value == nil {
				continue
			}
			role := strings.Trim(string(n.Role.Value), `"`)
			if role == "img" {
				role = "image"
			}
			if !slices.Contains(roles, role) {
				continue
			}
			found[role]++
			expect.True(b.t, n.Name != nil && strings.Trim(string(n.Name.Value), `" `) != "",
				"a", role, "has no name (element", n.BackendDOMNodeID, ")")
		}
		return err
	}))
	expect.True(b.t, found["heading"] != 0, "no headings", found)
}

// Everything can be reached and used by keys.
func TestKeyboard(t *testing.T) {
	_, url := madeUp(t, busy(), node.History{}, func(o *web.Options) { o.MayChange = func(*machine.Job) bool { return true } })
	b := open(t, url, as(1280, 800, "light", true))
	b.isLive()
	expect.Equal(t, b.text("location.search"), "", "the token is still in the address")
	focused := `(e => e.id || e.localName + (e.closest(".job") ? " of " + e.closest(".job").dataset.name : "") + (e.getAttribute("href") || ""))(document.activeElement)`
	press := func(key string) string {
		b.run(chromedp.KeyEvent(key))
		return b.text(focused)
	}
	expect.Equal(t, press(kb.Tab), "a#main", "the first is")
	if press(kb.Enter); b.text("document.activeElement.id") != "main" {
		t.Error("it does not skip")
	}
	expect.Equal(t, press("/"), "filter", "/ leads to")
	b.get(`document.activeElement.value = ""`, nil) // the driver types it all the same
	b.run(chromedp.SendKeys("#filter", "vllm"))
	b.wait(`document.querySelectorAll("#jobs > .job:not([hidden])").length === 1`)
	expect.Equal(t, press(kb.ArrowDown), "summary of serve-vllm", "then")
	press(kb.Enter)
	b.wait(`document.activeElement.closest("details").open`)
	var seen []string
	for range 8 {
		seen = append(seen, press(kb.Tab))
	}
	text := strings.Join(seen, ",")
	expect.True(t, strings.HasPrefix(text, "div of serve-vllm,input of serve-vllm,input of serve-vllm,input of serve-vllm,button of serve-vllm,"),
		"then", text)
	b.run(chromedp.Focus("#filter"), chromedp.KeyEvent(kb.Escape))
	b.wait(`document.querySelectorAll("#jobs > .job:not([hidden])").length === 6`)
	outline := b.text(`(document.querySelector("#jobs summary").focus(), getComputedStyle(document.activeElement).outlineStyle)`)
	expect.True(t, outline != "none", "the focus is not seen")
}
