package web

import (
	"bytes"
	"fmt"
	"image/png"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"ration/check/expect"
	"ration/check/fleet/sim"
	"ration/internal/fleet"
	"ration/internal/web"
)

// madeUpFleet serves the page of made-up machines, of which one does not exist.
func madeUpFleet(t *testing.T, count int) string {
	t.Helper()
	return serveFleet(t, followMadeUp(t, count))
}

// followMadeUp follows made-up machines until all were read.
func followMadeUp(t *testing.T, count int) *fleet.Fleet {
	t.Helper()
	made, err := sim.Start(t.Context(), count)
	expect.OK(t, err)
	folder := t.TempDir()
	args, err := made.Files(folder)
	expect.OK(t, err)
	list, err := fleet.NewList([]string{args[1], "127.0.0.1:1"})
	expect.OK(t, err)
	all, err := fleet.New(fleet.Options{List: list, Token: args[3], CA: args[5]})
	expect.OK(t, err)
	go all.Run(t.Context())
	for state, next := all.Latest(); ; state, next = all.Latest() {
		if len(state.Machines) == count+1 && !slices.ContainsFunc(state.Machines, func(m *fleet.Machine) bool { return m.Seen.IsZero() && m.Name != "127.0.0.1:1" }) && state.ByUrgency()[0].Reason != "" {
			return all
		}
		<-next
	}
}

func serveFleet(t *testing.T, all web.FleetSource) string {
	t.Helper()
	s := httptest.NewServer(web.NewFleet(all, web.Options{Version: "0.0.0", Token: sim.Token, ID: "test", MaxStreams: 4}))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s.URL + "/test/?token=" + sim.Token
}

// The page of a fleet is fit for everybody, in each size and theme. The keyboard finds a machine and a user.
func TestFleet(t *testing.T) {
	b := open(t, madeUpFleet(t, 120))
	b.isLive()
	for _, size := range sizes {
		for _, theme := range []string{"light", "dark"} {
			var wrong []string
			b.run(as(size.width, size.height, theme, true), chromedp.Evaluate(audit, &wrong))
			expect.True(t, len(wrong) == 0, size.name, theme, lines(wrong))
		}
	}
	b.named()
	expect.Equal(t, b.text(`document.querySelector("#machines .machine-name").textContent`), "127.0.0.1:1", "the first machine")
	b.shows(".down .trouble", "connection refused")
	count := `String(document.querySelectorAll("#machines > .machine:not([hidden])").length)`
	expect.Equal(t, b.text(count), "121")
	b.run(chromedp.KeyEvent("/"))
	expect.Equal(t, b.text(`document.activeElement.id`), "filter", "/ leads to")
	b.get(`document.activeElement.value = ""`, nil) // the driver types it again
	b.run(chromedp.SendKeys("#filter", "unreachable"))
	b.wait(count + ` === "1"`)
	b.run(chromedp.KeyEvent(kb.Escape))
	b.wait(count + ` === "121"`)
	b.run(chromedp.KeyEvent(kb.ArrowDown), chromedp.KeyEvent(kb.ArrowDown))
	expect.Equal(t, b.text(`document.activeElement.textContent`), b.text(`document.querySelectorAll("#machines .machine-name")[1].textContent`), "the focus")
	b.get(`document.querySelector("details.more-users").open = true`, nil)
	b.run(chromedp.Focus(`[data-user="alice"]`), chromedp.KeyEvent(" "))
	b.wait(`document.querySelector("[data-user=alice]").getAttribute("aria-pressed") === "true"`)
	var with, shown int
	b.get(`[...document.querySelectorAll("#machines > .machine")].filter((m) => m.querySelector('[data-of="alice"]')).length`, &with)
	b.get(`document.querySelectorAll("#machines > .machine:not([hidden])").length`, &shown)
	expect.True(t, with > 0 && with < 120 && shown == with, with, shown)
	b.waitLong(`Number(document.body.dataset.draws) > 2`) // it is live
}

// TestFleetFirstPaint prints when the browser has drawn the first of a thousand machines. It judges no time.
func TestFleetFirstPaint(t *testing.T) {
	url := madeUpFleet(t, 1000)
	for _, size := range sizes {
		b := open(t, url, as(size.width, size.height, "light", true))
		b.isLive()
		var paint, loaded float64
		b.wait(`performance.getEntriesByName("first-contentful-paint").length`)
		b.get(`performance.getEntriesByName("first-contentful-paint")[0].startTime`, &paint)
		b.get(`performance.getEntriesByType("navigation")[0].domContentLoadedEventEnd`, &loaded)
		t.Logf("%s: first paint after %.0f ms, everything is there after %.0f ms", size.name, paint, loaded)
		expect.True(t, paint > 0, "nothing was painted")
	}
}

// named gives made-up machines names as people choose them.
type named struct{ *fleet.Fleet }

func (f named) Latest() (*fleet.State, <-chan struct{}) {
	state, next := f.Fleet.Latest()
	out := &fleet.State{}
	for i, m := range state.Machines {
		m := *m
		m.Name = fmt.Sprintf("gpu%d", i)
		out.Machines = append(out.Machines, &m)
	}
	return out, next
}

// TestFleetPicture draws the picture of docs/fleet.md.
func TestFleetPicture(t *testing.T) {
	b := open(t, serveFleet(t, named{followMadeUp(t, 200)}), as(1440, 900, "light", true))
	b.isLive()
	var shot []byte
	b.run(chromedp.CaptureScreenshot(&shot))
	picture, err := png.Decode(bytes.NewReader(shot))
	expect.OK(t, err)
	small := fewColours(picture)
	expect.True(t, len(small.Palette) >= 64, "only", len(small.Palette), "colours")
	if *pictures == "" {
		return
	}
	var out bytes.Buffer
	expect.OK(t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, small))
	expect.OK(t, os.WriteFile(filepath.Join(*pictures, "fleet-desk.png"), out.Bytes(), 0o644))
}
