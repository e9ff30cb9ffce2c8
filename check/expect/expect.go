// Package expect compares what a test got with what it expects. Each function takes words and
// values for its message last: expect.Equal(t, len(jobs), 2, "jobs of", user).
package expect

import (
	"fmt"
	"strings"
	"testing"
)

// OK ends the test if there is an error.
func OK(t testing.TB, err error, context ...any) {
	t.Helper()
	if err != nil {
		t.Fatal(message(append([]any{err}, context...)))
	}
}

// Equal marks the test as failed if got is not want.
func Equal[T comparable](t testing.TB, got, want T, context ...any) {
	t.Helper()
	if got != want {
		t.Errorf("got %s, want %s %s", quoted(got), quoted(want), message(context))
	}
}

// True marks the test as failed if a condition does not hold.
func True(t testing.TB, holds bool, context ...any) {
	t.Helper()
	if !holds {
		t.Error("unexpected:", message(context))
	}
}

// Must ends the test if a condition does not hold.
func Must(t testing.TB, holds bool, context ...any) {
	t.Helper()
	if !holds {
		t.Fatal("unexpected:", message(context))
	}
}

// message joins words and values.
func message(context []any) string {
	words := make([]string, len(context))
	for i, c := range context {
		if b, ok := c.([]byte); ok {
			c = string(b)
		}
		words[i] = fmt.Sprintf("%+v", c)
	}
	return strings.Join(words, " ")
}

// quoted shows a string in quotes, so that its ends are seen, and all else as it is.
func quoted(v any) string {
	if s, ok := v.(string); ok {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprintf("%+v", v)
}
