package harness

import (
	"strconv"
	"strings"
	"testing"
)

// Answer is the line that answers an order.
type Answer struct {
	t    testing.TB
	line string
}

func (a Answer) String() string { return a.line }

// Verdict returns ok, refused or error.
func (a Answer) Verdict() string {
	verdict, _, _ := strings.Cut(a.line, " ")
	return verdict
}

// Code returns which error it is, or nothing.
func (a Answer) Code() string {
	if w := strings.Fields(a.line); len(w) > 1 && w[0] == "error" {
		return w[1]
	}
	return ""
}

// Fields returns the words after the verdict.
func (a Answer) Fields() []string { return strings.Fields(a.line)[1:] }

// Text returns the value of a field, or nothing if there is no such field.
func (a Answer) Text(name string) string {
	for _, f := range a.Fields() {
		if n, value, ok := strings.Cut(f, "="); ok && n == name {
			return value
		}
	}
	return ""
}

// Int returns the value of a field, which must be there.
func (a Answer) Int(name string) int {
	a.t.Helper()
	n, err := strconv.Atoi(a.Text(name))
	if err != nil {
		a.t.Fatalf("no %s in %q", name, a.line)
	}
	return n
}
