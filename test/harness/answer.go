package harness

import (
	"strconv"
	"strings"
	"testing"
)

// Answer is a worker's line.
type Answer struct {
	t    testing.TB
	line string
}

func (a Answer) String() string { return a.line }

// Verdict is ok, refused or error.
func (a Answer) Verdict() string {
	verdict, _, _ := strings.Cut(a.line, " ")
	return verdict
}

// Code says which error it is; empty for none.
func (a Answer) Code() string {
	if w := strings.Fields(a.line); len(w) > 1 && w[0] == "error" {
		return w[1]
	}
	return ""
}

// Fields are all that follows the verdict.
func (a Answer) Fields() []string { return strings.Fields(a.line)[1:] }

// Text is the value of a field; empty where there is none.
func (a Answer) Text(name string) string {
	for _, f := range a.Fields() {
		if n, value, ok := strings.Cut(f, "="); ok && n == name {
			return value
		}
	}
	return ""
}

// Int is the value of a field that must be there.
func (a Answer) Int(name string) int {
	a.t.Helper()
	n, err := strconv.Atoi(a.Text(name))
	if err != nil {
		a.t.Fatalf("no %s in %q", name, a.line)
	}
	return n
}
