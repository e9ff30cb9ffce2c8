package web

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"ration/check/expect"
	"ration/internal/usage"
)

const gibSeconds = 1 << 30

// week is a report of a week, in hours, with a night in which no agent ran.
func week(by string, lines []usage.Line) usage.Report {
	const n = 168
	from := time.Date(2026, 11, 9, 0, 0, 0, 0, time.UTC)
	r := usage.Report{From: from, To: from.Add(n * time.Hour), By: by, Lines: lines, Plot: &usage.Plot{From: from, Step: 3600, Watched: make([]float64, n), All: make([]usage.Point, n)}}
	for i := range lines {
		l := &r.Lines[i]
		points := make([]usage.Point, n)
		for hour := range n {
			if hour >= 75 && hour < 81 {
				continue
			}
			r.Plot.Watched[hour] = 3600
			wave := math.Max(0, math.Sin(float64(hour+5*i)/float64(9+2*i%7))) / float64(1+i)
			points[hour] = usage.Point{Held: uint64(wave * 90 * gibSeconds * 3600), Seconds: 3600 * math.Min(1, 2*wave)}
			if i%3 == 1 {
				points[hour].Idle, points[hour].Seconds = points[hour].Held/10*9, points[hour].Seconds/10
			}
			l.Held, l.Idle, l.Seconds = l.Held+points[hour].Held, l.Idle+points[hour].Idle, l.Seconds+points[hour].Seconds
			all := &r.Plot.All[hour]
			all.Held, all.Idle, all.Seconds = all.Held+points[hour].Held, all.Idle+points[hour].Idle, all.Seconds+points[hour].Seconds
		}
		if i < usage.PlotLines {
			r.Plot.Lines = append(r.Plot.Lines, points)
		}
		l.Reserved, l.Peak = l.Held+l.Held/4, 40<<30/uint64(i+1)
		if i%4 == 2 {
			l.Refused, l.Sampled = 17, l.Seconds/2
		}
		r.Total.Held, r.Total.Idle, r.Total.Seconds, r.Total.Reserved = r.Total.Held+l.Held, r.Total.Idle+l.Idle, r.Total.Seconds+l.Seconds, r.Total.Reserved+l.Reserved
		r.Total.Refused, r.Total.Sampled = r.Total.Refused+l.Refused, r.Total.Sampled+l.Sampled
	}
	r.Watched = (n - 6) * 3600
	return r
}

func writeReport(t *testing.T, r usage.Report) string {
	t.Helper()
	var out bytes.Buffer
	expect.OK(t, WriteReport(&out, r, "1.2.3", "", r.To))
	return out.String()
}

// hostileNames are names that a user may choose, each of which must only be seen as text.
var hostileNames = []string{`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `</title><script src=//evil.example></script>`, `</style><style>*{background:url(//evil.example)}`,
	`' onmouseover='alert(1)`, `</svg><iframe src="javascript:alert(1)">`, `{{.Style}}`, "\x1b[2J\u202eabc"}

// Whatever users call their jobs and projects, the report has no script, loads nothing, and shows the names.
func TestReportEscapes(t *testing.T) {
	for _, by := range usage.Ways {
		var lines []usage.Line
		for _, name := range hostileNames {
			lines = append(lines, map[string]usage.Line{usage.ByUser: {User: name}, usage.ByProject: {Project: name}, usage.ByJob: {User: "eve", Job: name, Project: name}, usage.ByGPU: {GPU: name}}[by])
		}
		text := writeReport(t, week(by, lines))
		root, err := html.Parse(strings.NewReader(text))
		expect.OK(t, err)
		elements, words := map[string]int{}, strings.Builder{}
		for n := range root.Descendants() {
			switch n.Type {
			case html.TextNode:
				words.WriteString(n.Data)
			case html.ElementNode:
				elements[n.Data]++
				for _, a := range n.Attr {
					expect.True(t, !strings.HasPrefix(a.Key, "on") && a.Key != "style" && a.Key != "href" && a.Key != "src", by, n.Data, a)
				}
			}
		}
		for _, forbidden := range []string{"script", "img", "iframe", "link", "a", "form", "object"} {
			expect.Equal(t, elements[forbidden], 0, by, forbidden)
		}
		expect.Equal(t, elements["style"], 1)
		for _, name := range hostileNames[:7] {
			expect.True(t, strings.Contains(words.String(), name), by, "does not show", name)
		}
		expect.True(t, !strings.ContainsAny(text, "\x1b\u202e"), by, "has control characters")
		expect.True(t, strings.Contains(text, `content="default-src &#39;none&#39;; style-src &#39;unsafe-inline&#39;"`) || strings.Contains(text, `content="default-src 'none'; style-src 'unsafe-inline'"`), "no policy")
		style := text[strings.Index(text, "<style>"):strings.Index(text, "</style>")]
		expect.True(t, strings.Contains(style, "--ground: light-dark(") && !strings.Contains(style, "ZgotmplZ") && !strings.Contains(style, "//evil"), "not the page's style")
	}
}

// The plots have all lines and the gap, and paths that a browser draws.
func TestReportPlots(t *testing.T) {
	var lines []usage.Line
	for i := range 30 {
		lines = append(lines, usage.Line{User: fmt.Sprint("user", i)})
	}
	r := week(usage.ByUser, lines)
	v := viewUsage(&r, newColours(), time.UTC)
	expect.Equal(t, len(v.Plots), 3)
	held := v.Plots[1]
	expect.Equal(t, len(held.Areas), usage.PlotLines+1) // and the others
	expect.Equal(t, held.Areas[0].Class, noColour)
	expect.Equal(t, held.Areas[len(held.Areas)-1].Name, "user0")
	expect.Equal(t, held.Gaps, "M80.36 0H86.79V1000H80.36Z")
	expect.Equal(t, len(held.Ticks), 7)
	expect.Equal(t, held.Ticks[1], tick{"14.29%", "Tue 10"})
	expect.Equal(t, v.Unwatched, "6 h")
	expect.Equal(t, v.Rows[0].HeldWidth, "100.00%")
	expect.True(t, !strings.Contains(held.Areas[0].Path, "NaN"), held.Areas[0].Path)
	var svg struct{ XMLName xml.Name }
	text := writeReport(t, r)
	at := strings.Index(text, `<svg role="img"`)
	expect.OK(t, xml.Unmarshal([]byte(text[at:at+strings.Index(text[at:], "</figure>")]), &svg))
	if path := os.Getenv("RATION_TEST_REPORT"); path != "" { // to look at it
		expect.OK(t, os.WriteFile(path, []byte(writeReport(t, week(usage.ByUser, []usage.Line{{User: "lovelace"}, {User: "hopper"}, {User: "noether"}, {User: "curie"}, {User: "meitner"}, {User: "hamilton"}, {User: "franklin"}, {User: "johnson"}, {User: "goodall"}, {User: "wu"}}))), 0o644))
	}
	empty := viewUsage(&usage.Report{By: usage.ByUser, Plot: &usage.Plot{Step: 60, Watched: make([]float64, 3), All: make([]usage.Point, 3)}}, newColours(), time.UTC)
	expect.True(t, len(empty.Rows) == 0 && len(empty.Plots[0].Areas) == 0, empty)
}
