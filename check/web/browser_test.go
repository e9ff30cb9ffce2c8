// Package web tests the page in a real browser, Chromium: with real jobs on a stand-in driver, an
// agent and ration web, and with machines that are made up. It is a module of its own, so that
// ration does not depend on what drives the browser. make test-web runs it.
package web

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"ration/check/expect"
)

// timeout is how long something may take that a busy machine does slowly. Nothing waits for it
// but what has failed.
const timeout = 60 * time.Second

// chromium is one browser for all tests.
var chromium context.Context

func TestMain(m *testing.M) {
	path, err := exec.LookPath("chromium")
	if err != nil {
		fmt.Println("there is no chromium (make test-web installs it):", err)
		os.Exit(1)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.ExecPath(path), chromedp.Flag("hide-scrollbars", true),
		chromedp.WSURLReadTimeout(timeout))
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
	var stop context.CancelFunc
	chromium, stop = chromedp.NewContext(allocator)
	if err := chromedp.Run(chromium); err != nil {
		fmt.Println("starting chromium:", err)
		os.Exit(1)
	}
	code := m.Run()
	stop()
	end()
	os.Exit(code)
}

// tab is a tab of the browser. What the page does that it must not, a script
// that fails or a load that its policy refuses, fails the test.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu      sync.Mutex
	trouble []string // under mu
}

func open(t *testing.T, url string, before ...chromedp.Action) *tab {
	t.Helper()
	ctx, end := chromedp.NewContext(chromium)
	b := &tab{t: t, ctx: ctx}
	chromedp.ListenTarget(ctx, func(event any) {
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			b.add("exception: " + e.ExceptionDetails.Text)
		case *cdppage.EventJavascriptDialogOpening:
			b.add("dialog: " + e.Message)
		case *log.EventEntryAdded:
			// That a server is away while it is started again is what some tests are about.
			if e.Entry.Source == log.SourceSecurity || e.Entry.Source == log.SourceJavascript {
				b.add(e.Entry.Text)
			}
		}
	})
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		expect.True(t, len(b.trouble) == 0, "the page is in trouble", b.trouble)
		end()
	})
	expect.OK(t, chromedp.Run(ctx)) // the tab lives as long as the context of its first run
	b.run(append(append(before, cdppage.BringToFront()), chromedp.Navigate(url))...)
	return b
}

func (b *tab) add(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.trouble = append(b.trouble, text)
}

func (b *tab) run(actions ...chromedp.Action) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, timeout)
	defer cancel()
	expect.OK(b.t, chromedp.Run(ctx, actions...))
}

// get evaluates an expression.
func (b *tab) get(expression string, out any) {
	b.t.Helper()
	b.run(chromedp.Evaluate(expression, out))
}

func (b *tab) text(expression string) (out string) {
	b.t.Helper()
	b.get("String("+expression+")", &out)
	return out
}

// wait waits until an expression is true. The page is asked again and again.
func (b *tab) wait(expression string) { b.t.Helper(); b.waitFor(expression, timeout) }

// waitLong waits for what takes a machine minutes.
func (b *tab) waitLong(expression string) { b.t.Helper(); b.waitFor(expression, 10*timeout) }

func (b *tab) waitFor(expression string, timeout time.Duration) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, timeout)
	defer cancel()
	if err := chromedp.Run(ctx, chromedp.Poll(expression, nil, chromedp.WithPollingTimeout(timeout), chromedp.WithPollingInterval(10*time.Millisecond))); err != nil {
		var text string
		_ = chromedp.Run(b.ctx, chromedp.Evaluate("document.body.innerText", &text))
		b.t.Fatalf("never true: %s: %v\nThe page is:\n%s", expression, err, text)
	}
}

// shows waits until an element has a text.
func (b *tab) shows(selector, text string) {
	b.t.Helper()
	b.wait(fmt.Sprintf("[...document.querySelectorAll(%s)].some(e => e.textContent.includes(%s))", quote(selector), quote(text)))
}

func (b *tab) isLive() { b.t.Helper(); b.wait(`document.querySelector("#live.on")`) }

func quote(text string) string {
	out, _ := json.Marshal(text)
	return string(out)
}

// as sets how the page is looked at: its size, the theme, and whether things may move.
func as(width, height int64, theme string, still bool) chromedp.Action {
	motion := "no-preference"
	if still {
		motion = "reduce"
	}
	return chromedp.Tasks{chromedp.EmulateViewport(width, height), emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: theme}, {Name: "prefers-reduced-motion", Value: motion}})}
}

// sizes are a phone, a desk and a wall.
var sizes = []struct {
	name          string
	width, height int64
}{{"phone", 390, 844}, {"desk", 1280, 800}, {"wall", 2560, 1440}}

// jobSelector is the element of the job with a name.
func jobSelector(name string) string {
	return fmt.Sprintf(`[...document.querySelectorAll(".job")].find(e => e.dataset.name === %s)`, quote(name))
}

// lines joins what was found wrong.
func lines(all []string) string { return strings.Join(all, "\n") }

// awaited is for an expression that is a promise.
func awaited(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }
