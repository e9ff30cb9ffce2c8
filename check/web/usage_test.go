package web

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"ration/check/expect"
	"ration/check/webtest"
	"ration/internal/usage"
	"ration/internal/web"
)

// weekOfAccounts writes a week of accounts of four users. A job of one user has a hostile name.
func weekOfAccounts(t *testing.T) func(from, to time.Time, plot bool) (usage.Report, error) {
	t.Helper()
	s, err := usage.Open(filepath.Join(t.TempDir(), "usage.db"))
	expect.OK(t, err)
	t.Cleanup(func() { _ = s.Close() })
	now := time.Now()
	users := []string{"alice", "bob", "carol", "dave<b>x</b>"}
	for at, step := now.Add(-7*24*time.Hour).Truncate(time.Hour), time.Hour; at.Before(now); at = at.Add(step) {
		if now.Sub(at) < 24*time.Hour {
			step = 10 * time.Minute
		}
		p := usage.Period{At: at, Watched: step, Sums: map[usage.Subject]usage.Sums{}}
		for i, user := range users {
			hours := at.Sub(now).Hours()
			size := math.Max(0, math.Sin(hours/(5+3*float64(i))+float64(i))) * float64(40*webtest.GiB)
			sums := usage.Sums{Held: uint64(size * step.Seconds()), Measured: uint64(float64(step) * size / float64(80*webtest.GiB)), Peak: uint64(size)}
			if i == 1 {
				sums.Idle, sums.Measured = sums.Held, 0
			}
			p.Sums[usage.Subject{UID: 1000 + i, Owner: user, Job: "train", Device: "GPU-0"}] = sums
		}
		expect.OK(t, s.Add(p))
	}
	return func(from, to time.Time, plot bool) (usage.Report, error) {
		read := s.Report
		if plot {
			read = s.ReportPlot
		}
		return read(from, to, usage.ByUser, func(int) bool { return true })
	}
}

// The accounts of a day and a week are shown on demand. A part of the time is selected with the pointer and with the
// keyboard, and without scripts.
func TestUsage(t *testing.T) {
	m := busy()
	_, url := madeUp(t, m, webtest.Past(m, time.Now()), func(o *web.Options) { o.Usage = weekOfAccounts(t) })
	b := open(t, url, as(1280, 1600, "light", true))
	b.isLive()
	expect.Equal(t, b.text(`document.querySelectorAll(".plot").length`), "0")
	b.run(chromedp.Click(`.span[data-span="week"]`))
	b.wait(`document.querySelectorAll(".plot").length === 3`)
	b.shows(".usage tbody th", "dave<b>x</b>")
	expect.Equal(t, b.text(`document.querySelectorAll(".usage tbody tr").length`), "4")
	expect.True(t, strings.Contains(b.text(`location.search`), "usage=week"))
	held := func() string {
		return b.text(`document.querySelector(".usage-body .figures div:nth-child(2) dd").textContent`)
	}
	selected := func() (from, to int) {
		for _, at := range []struct {
			name string
			out  *int
		}{{"from", &from}, {"to", &to}} {
			var err error
			*at.out, err = strconv.Atoi(b.text(fmt.Sprintf(`document.querySelector(".brush [name=%s]").value`, at.name)))
			expect.OK(t, err)
		}
		return from, to
	}
	all := held()
	first, last := selected()

	// With the pointer, on the middle half of the first plot.
	var box []float64
	b.get(`(() => { const r = document.querySelector(".plot > svg[role=img]").getBoundingClientRect(); return [r.left, r.top + r.height / 2, r.width]; })()`, &box)
	b.run(chromedp.MouseEvent(input.MousePressed, box[0]+box[2]/4, box[1], chromedp.ButtonLeft, chromedp.ClickCount(1)),
		chromedp.MouseEvent(input.MouseMoved, box[0]+box[2]/2, box[1], chromedp.ButtonLeft),
		chromedp.MouseEvent(input.MouseMoved, box[0]+box[2]*3/4, box[1], chromedp.ButtonLeft),
		chromedp.MouseEvent(input.MouseReleased, box[0]+box[2]*3/4, box[1], chromedp.ButtonLeft, chromedp.ClickCount(1)))
	b.wait(fmt.Sprintf(`document.querySelector(".usage-body .figures div:nth-child(2) dd").textContent !== %s`, quote(all)))
	from, to := selected()
	part := float64(to-from) / float64(last-first)
	expect.True(t, part > 0.45 && part < 0.55 && from > first && to < last, first, from, to, last)
	b.wait(`location.search.includes("from=")`)
	if path := os.Getenv("RATION_TEST_PICTURE"); path != "" {
		var shot []byte
		b.run(chromedp.CaptureScreenshot(&shot))
		expect.OK(t, os.WriteFile(path, shot, 0o644))
	}

	// With the keyboard: the end an hour earlier, never before the beginning.
	half := held()
	b.run(chromedp.Focus(`.brush [name="to"]`), chromedp.KeyEvent(kb.ArrowLeft))
	b.wait(fmt.Sprintf(`document.querySelector(".brush [name=to]").value === "%d"`, to-3600))
	b.run(chromedp.KeyEvent(kb.Home))
	b.wait(fmt.Sprintf(`document.querySelector(".brush [name=to]").value === "%d"`, from+3600))
	b.wait(fmt.Sprintf(`document.querySelector(".usage-body .figures div:nth-child(2) dd").textContent !== %s`, quote(half)))
	expect.True(t, b.text(`document.activeElement.name`) == "to", "the focus is lost")
	expect.True(t, b.text(`document.querySelector(".brush [name=to]").getAttribute("aria-valuetext")`) != "null")
	b.wait(`document.querySelector("#said").textContent.startsWith("Usage of ")`)

	// Everything again.
	b.run(chromedp.Click(`[data-brush="all"]`))
	b.wait(fmt.Sprintf(`document.querySelector(".usage-body .figures div:nth-child(2) dd").textContent === %s`, quote(all)))
	b.run(chromedp.Click(`.span[data-span="day"]`))
	b.wait(`document.querySelector(".usage-body").dataset.span === "day" && document.querySelector(".usage-body").dataset.step === "600"`)

	// A link to a part of the time draws it at once, without scripts too.
	again := open(t, strings.Replace(url, "?", fmt.Sprintf("?usage=week&from=%d&to=%d&", from, to), 1))
	again.isLive()
	expect.Equal(t, again.text(`document.querySelector(".brush [name=from]").value`), strconv.Itoa(from))
	expect.Equal(t, again.text(`document.querySelector(".usage-body .figures div:nth-child(2) dd").textContent`), half)
}
