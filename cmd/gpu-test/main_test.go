package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ration/check/gputest"
)

// A report that was kept as JSON can be written as a page later, on another machine.
func TestFrom(t *testing.T) {
	folder := t.TempDir()
	path := func(name string) string { return filepath.Join(folder, name) }
	if err := save(path("report.json"), gputest.Report{Checks: []gputest.Outcome{{Check: "limit/plain", Verdict: gputest.Pass, Summary: "held"}}}); err != nil {
		t.Fatal(err)
	}
	report, err := read(path("report.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := saveAs("", path("page.html"), report); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(path("page.html"))
	if err != nil || !strings.Contains(string(page), "limit/plain") || !strings.Contains(string(page), "1 passed, 0 failed, 0 were skipped.") {
		t.Errorf("%v: %s", err, page)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) != 2 {
		t.Errorf("wrote %v, %v", left, err)
	}
	if _, err := read(path("nothing.json")); err == nil {
		t.Error("a report that is not there was read")
	}
}
