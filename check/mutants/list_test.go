package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"ration/check/expect"
)

// Every mutant of the list can be applied to the files as they are, and changes something.
func TestList(t *testing.T) {
	text, err := os.ReadFile("list")
	expect.OK(t, err)
	all, _, err := parse(text)
	expect.True(t, err == nil, err)
	for _, m := range all {
		before, err := os.ReadFile(filepath.Join("../..", m.file))
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
			continue
		}
		if after, err := m.apply(string(before)); err != nil || after == string(before) {
			t.Errorf("%s: changes nothing, %v", m.name, err)
		}
	}
}

// Every test of the list exists: of a renamed one, or of one of several, go test would say nothing.
func TestTestsOfTheList(t *testing.T) {
	text, err := os.ReadFile("list")
	expect.OK(t, err)
	all, _, err := parse(text)
	expect.OK(t, err)
	for _, m := range all {
		if m.kind == "shim" {
			for _, name := range m.args {
				path := "../../shim/test/" + name
				expect.True(t, exists(path) || exists(path+".c"), m.name, "shim/test has no", name)
			}
			continue
		}
		run := m.args[len(m.args)-1]
		folder := filepath.Join(append([]string{"../.."}, m.args[:len(m.args)-1]...)...)
		names := testsOf(t, folder)
		top, _, _ := strings.Cut(run, "/")
		for _, pattern := range strings.Split(top, "|") {
			of, err := regexp.Compile(pattern)
			expect.True(t, err == nil && slices.ContainsFunc(names, of.MatchString), m.name, folder, "has no test", pattern, err)
		}
	}
}

// testsOf returns the names of a package's tests.
func testsOf(t *testing.T, folder string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(folder + "/*_test.go")
	expect.OK(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		expect.OK(t, err)
		for _, of := range regexp.MustCompile(`(?m)^func (Test\w*)\(`).FindAllSubmatch(text, -1) {
			names = append(names, string(of[1]))
		}
	}
	return names
}

func TestParse(t *testing.T) {
	const good = "mutant a\npromise p\nfile f\n- old\ntest go ./p T\n"
	for _, c := range []struct{ text, want string }{
		{good, ""},
		{"# a comment\n\n" + good + "\n" + strings.Replace(good, "mutant a", "mutant b", 1), ""},
		{good + good, "another mutant's"},
		{"file f\n", "before the first"},
		{strings.Replace(good, "go ./p T", "go ./p", 1), "is no test"},
		{strings.Replace(good, "promise p\n", "", 1), "lacks a promise"},
		{good + "old f\n", "is none of"},
		{good + "without x\nreason y\n", ""},
		{good + "without x\n", "nor a reason"},
	} {
		_, _, err := parse([]byte(c.text))
		expect.True(t, (err != nil || c.want == "") && (err == nil || c.want != "" && strings.Contains(err.Error(), c.want)), c.text, err, "want", c.want)
	}
}

func TestApply(t *testing.T) {
	const text = "one\n\ttwo = 1\nthree\n\ttwo = 1\n"
	for _, c := range []struct{ after, old, new, want string }{
		{"", "one", "none", "none\n\ttwo = 1\nthree\n\ttwo = 1\n"},
		{"", "two = 1", "", ""},
		{"three", "two = 1", "two = 2", "one\n\ttwo = 1\nthree\n\ttwo = 2\n"},
		{"one", "two = 1", "", "one\n\t\nthree\n\ttwo = 1\n"},
		{"two", "three", "", ""},
		{"", "four", "", ""},
	} {
		m := mutant{after: c.after, old: c.old, new: c.new}
		got, err := m.apply(text)
		expect.True(t, got == c.want && (err != nil) == (c.want == ""), c, got, err)
	}
}
