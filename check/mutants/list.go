package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// mutant is a change of one line that breaks a promise, and the test that must notice.
type mutant struct {
	name     string
	promises []string // each the beginning of one in a document
	file     string
	after    string // the old text is the first after this; empty: it is in the file once
	old, new string
	kind     string // of the test
	args     []string
}

var kinds = map[string]int{"go": 2, "native": 2, "shim": 1, "module": 3} // with at least so many arguments

// parse reads the list: mutants, and the reasons why promises have none.
func parse(text []byte) (all []mutant, without map[string]string, err error) {
	var m *mutant
	number, promise := 0, ""
	without = map[string]string{}
	fail := func(format string, arg ...any) {
		err = errors.Join(err, fmt.Errorf("line %d: "+format, append([]any{number}, arg...)...))
	}
	names := map[string]bool{}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		number++
		line := lines.Text()
		word, rest, _ := strings.Cut(line, " ")
		rest = strings.TrimSpace(rest)
		switch {
		case line == "" || word == "#":
			continue
		case word == "mutant":
			if names[rest] || rest == "" {
				fail("the name %q is empty, or another mutant's", rest)
			}
			names[rest] = true
			all = append(all, mutant{name: rest})
			m = &all[len(all)-1]
			continue
		case word == "without":
			promise, without[rest] = rest, ""
			continue
		case word == "reason" && promise != "":
			without[promise] = rest
			continue
		case m == nil:
			fail("%q comes before the first mutant", line)
			return nil, nil, err
		}
		switch word {
		case "promise":
			m.promises = append(m.promises, rest)
		case "file":
			m.file = rest
		case "after":
			m.after = rest
		case "-":
			m.old = rest
		case "+":
			m.new = rest
		case "test":
			word := strings.Fields(rest)
			if len(word) == 0 || kinds[word[0]] == 0 || len(word)-1 < kinds[word[0]] {
				fail("%q is no test (doc.go has the kinds)", rest)
				continue
			}
			m.kind, m.args = word[0], word[1:]
		default:
			fail("%q is none of mutant, promise, file, after, -, +, test, without and reason", word)
		}
	}
	for _, m := range all {
		if len(m.promises) == 0 || slices.Contains([]string{m.file, m.old, m.kind}, "") {
			err = errors.Join(err, fmt.Errorf("%s: it lacks a promise, a file, an old text or a test", m.name))
		}
	}
	for promise, reason := range without {
		if reason == "" {
			err = errors.Join(err, fmt.Errorf("%q has neither a mutant nor a reason", promise))
		}
	}
	return all, without, err
}

// test returns the test as the list has it.
func (m *mutant) test() string { return m.kind + " " + strings.Join(m.args, " ") }

// apply returns a file's text with the change.
func (m *mutant) apply(text string) (string, error) {
	from := 0
	if m.after != "" {
		if n := strings.Count(text, m.after); n != 1 {
			return "", fmt.Errorf("%s: %s has %q %d times, not once (give check/mutants/list another anchor)", m.name, m.file, m.after, n)
		}
		from = strings.Index(text, m.after) + len(m.after)
	}
	n := strings.Count(text[from:], m.old)
	if n == 0 || m.after == "" && n > 1 {
		return "", fmt.Errorf("%s: %s has %q %d times, not once (the code has changed: so must check/mutants/list)", m.name, m.file, m.old, n)
	}
	at := from + strings.Index(text[from:], m.old)
	return text[:at] + m.new + text[at+len(m.old):], nil
}
