package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ration/check/expect"
)

// promisesOf returns the promises of a page: the points of a list, or the first cells of tables, below a
// heading.
func promisesOf(t *testing.T, page, heading string) (out []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", page))
	expect.OK(t, err)
	_, below, found := strings.Cut(string(text), heading+"\n")
	expect.Must(t, found, page, "has no", heading)
	below, _, _ = strings.Cut(below, "\n## ")
	lines := strings.Split(below, "\n")
	for i, line := range lines {
		if point, is := strings.CutPrefix(line, "- "); is {
			out = append(out, point)
		}
		row := strings.Split(strings.Trim(line, "|"), "|")
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") || i+1 < len(lines) && strings.HasPrefix(lines[i+1], "|---") {
			continue
		}
		out = append(out, strings.TrimSpace(row[0]))
	}
	return out
}

// Every promise has a mutant, or a reason why it has none; and what the list has is promised.
func TestPromises(t *testing.T) {
	text, err := os.ReadFile("list")
	expect.OK(t, err)
	all, without, err := parse(text)
	expect.OK(t, err)
	var broken []string
	for _, m := range all {
		broken = append(broken, m.promises...)
	}
	promises := slices.Concat(promisesOf(t, "README.md", "## What it promises"), promisesOf(t, "docs/protocols.md", "# The protocols"),
		promisesOf(t, "docs/security.md", "## What is tested, and where"))
	expect.True(t, len(promises) >= 80, "only", len(promises), "promises were found")
	begins := func(promise string) func(string) bool {
		return func(text string) bool { return strings.HasPrefix(promise, text) }
	}
	for _, promise := range promises {
		_, reason := without[promise]
		for text := range without {
			reason = reason || strings.HasPrefix(promise, text)
		}
		expect.True(t, reason || slices.ContainsFunc(broken, begins(promise)), "no mutant breaks it, and no reason is given", promise)
	}
	promises = append(promises, promisesOf(t, "docs/benchmarks.md", "## The region")...)
	for text := range without {
		broken = append(broken, text)
	}
	for _, text := range broken {
		expect.True(t, slices.ContainsFunc(promises, func(promise string) bool { return strings.HasPrefix(promise, text) }), "no page promises", text)
	}
}
