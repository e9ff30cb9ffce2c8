package expect_test

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"ration/check/expect"
)

// recorder is a test that only records how it ended.
type recorder struct {
	testing.TB
	failed, ended bool
	said          string
}

func (r *recorder) Helper() {}

func (r *recorder) Error(args ...any) { r.failed, r.said = true, fmt.Sprint(args...) }

func (r *recorder) Errorf(format string, args ...any) { r.Error(fmt.Sprintf(format, args...)) }

func (r *recorder) Fatal(args ...any) {
	r.Error(args...)
	r.ended = true
	runtime.Goexit()
}

// What is as expected says nothing. All else fails the test, and some of it ends the test.
func TestExpect(t *testing.T) {
	for name, c := range map[string]struct {
		check         func(testing.TB)
		failed, ended bool
		said          string
	}{
		"no error":   {check: func(t testing.TB) { expect.OK(t, nil, "x") }},
		"an error":   {func(t testing.TB) { expect.OK(t, errors.New("gone"), "in", 3) }, true, true, "gone in 3"},
		"equal":      {check: func(t testing.TB) { expect.Equal(t, 2, 2) }},
		"different":  {func(t testing.TB) { expect.Equal(t, 2, 3, "jobs") }, true, false, "got 2, want 3 jobs"},
		"strings":    {func(t testing.TB) { expect.Equal(t, "a ", "a") }, true, false, `got "a ", want "a" `},
		"true":       {check: func(t testing.TB) { expect.True(t, true) }},
		"false":      {func(t testing.TB) { expect.True(t, false, []byte("out")) }, true, false, "unexpected:out"},
		"must":       {check: func(t testing.TB) { expect.Must(t, true) }},
		"must false": {func(t testing.TB) { expect.Must(t, false, "left", struct{ N int }{1}) }, true, true, "unexpected:left {N:1}"},
	} {
		t.Run(name, func(t *testing.T) {
			r, done := &recorder{}, make(chan struct{})
			go func() { defer close(done); c.check(r) }()
			<-done
			if r.failed != c.failed || r.ended != c.ended || r.said != c.said {
				t.Errorf("got %+v", r)
			}
		})
	}
}
