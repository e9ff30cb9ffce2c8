package benchpage_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"ration/check/benchpage"
	"ration/check/expect"
)

var update = flag.Bool("update", false, "write testdata/page.html")

// fixed is a page with everything that a page can have, and names that would break it.
func fixed() benchpage.Page {
	return benchpage.Page{
		Title: "What ration costs on <this> machine", Warning: "A smoke run.", Lead: "A lead & a half.", Date: "2026-11-16T03:02:46Z", Command: "ration bench report",
		Machine: []benchpage.Fact{{"CPU", "2 × \"Xeon\""}, {"kernel", "Linux 6.18"}},
		Comparisons: []benchpage.Comparison{
			{Name: "cuMemAlloc", Native: benchpage.Spread{Low: 90, Median: 100, High: 120}, Job: benchpage.Spread{Low: 200, Median: 210, High: 240},
				NativeText: "100 ns", JobText: "210 ns", More: "+110 ns", MoreSpread: "+80 ns … +150 ns", Noise: "1.0 %", Target: "≤ +500 ns", Verdict: "kept"},
			{Name: "native only", Native: benchpage.Spread{Low: 1, Median: 1, High: 1}, NativeText: "1 ns"},
			{Name: "nothing at all"},
			{Name: "no values", WithoutValue: "needs <torch>"},
		},
		Groups: []benchpage.Group{
			{Name: "update", About: "One charge.", Notes: []string{"A note."}, Values: []benchpage.Value{
				{Name: "charge", Text: "282 ns", Spread: "271–299 ns", Nanoseconds: benchpage.Spread{Low: 271, Median: 282, High: 299}, Target: "≤ 12 ×", Verdict: "over", Note: "loud"},
				{Name: "slow", Text: "1.5 ms", Nanoseconds: benchpage.Spread{Median: 1.5e6}},
				{Name: "tried again", Text: "0.2 %"},
			}},
			{Name: "counts", About: "No times.", Values: []benchpage.Value{{Name: "torn", Text: "0", Target: "0", Verdict: "ok"}}},
		},
		Checks: []benchpage.TestResult{{"limit/plain", "pass", "held"}, {"limit/torch", "fail", "<script>alert(1)</script>"}, {"nccl", "skip", "one GPU"}},
	}
}

func render(t *testing.T, p benchpage.Page) []byte {
	t.Helper()
	var out bytes.Buffer
	expect.OK(t, benchpage.Write(&out, p))
	return out.Bytes()
}

func TestGolden(t *testing.T) {
	got := render(t, fixed())
	if *update {
		expect.OK(t, os.WriteFile("testdata/page.html", got, 0o644))
	}
	want, err := os.ReadFile("testdata/page.html")
	expect.OK(t, err)
	expect.True(t, bytes.Equal(got, want),
		"the page is not testdata/page.html (go test ./check/benchpage -update writes it; look at the difference)", got)
}

// The page is valid, and needs nothing from anywhere else.
func TestSelfContained(t *testing.T) {
	for name, p := range map[string]benchpage.Page{"full": fixed(), "empty": {}} {
		text := render(t, p)
		// Every element is closed and every attribute quoted: it is XML as well.
		for dec := xml.NewDecoder(bytes.NewReader(text)); ; {
			if _, err := dec.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		root, err := html.Parse(bytes.NewReader(text))
		expect.OK(t, err, name)
		plots := 0
		for n := range root.Descendants() {
			switch {
			case n.Type == html.ElementNode && (n.Data == "script" || n.Data == "link" || n.Data == "iframe" || n.Data == "img" || n.Data == "object"):
				t.Errorf("%s: there is a %s", name, n.Data)
			case n.Type == html.ElementNode && n.Data == "svg":
				plots++
			case n.Type == html.TextNode && n.Parent.Data == "style" && (strings.Contains(n.Data, "url(") || strings.Contains(n.Data, "@import")):
				t.Errorf("%s: the style refers to something", name)
			}
			for _, a := range n.Attr {
				expect.True(t, a.Key != "src" && a.Key != "href" && a.Key != "style" && !strings.HasPrefix(a.Key, "on") && !strings.Contains(a.Val, "NaN") && !strings.Contains(a.Val, "Inf"),
					name, n.Data, "has", a.Key, "=", a.Val)
			}
		}
		expect.True(t, !bytes.Contains(text, []byte("http")), name, "it names an address")
		want := map[string]int{"full": 6, "empty": 0}[name]
		expect.Equal(t, plots, want, name, "plots")
		expect.True(t, bytes.Contains(text, []byte("prefers-color-scheme: dark")), name, "it is not dark in the dark")
	}
}

// What is wider in numbers is wider in the plot, and nothing leaves it.
func TestPlotsAreToScale(t *testing.T) {
	text := string(render(t, fixed()))
	for _, want := range []string{
		`<line class="native" x1="91.0" y1="8" x2="120.0" y2="8" />`, // 90 and 120 of 240, on 232 units from 4
		`<line class="job" x1="197.3" y1="19" x2="236.0" y2="19" />`,
		`<circle class="job" cx="207.0" cy="19" r="3.5" />`,
		`<text x="4.0" y="10" text-anchor="middle">100 ns</text>`, // decades from 100 ns to 10 ms
		`<text x="236.0" y="10" text-anchor="middle">10 ms</text>`,
	} {
		expect.True(t, strings.Contains(text, want), want, "is not there")
	}
}
