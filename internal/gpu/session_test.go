package gpu

import (
	"errors"
	"testing"
	"time"

	"ration/check/expect"
)

// A driver is opened once for many questions, and anew after a while, after a failure, and where
// there was none.
func TestSession(t *testing.T) {
	opened, now, absent := 0, time.Unix(1e9, 0), false
	s := Session{now: func() time.Time { return now }, open: func() (*Driver, error) {
		if absent {
			return nil, ErrNoDriver
		}
		opened++
		return &Driver{}, nil
	}}
	ask := func(want int) {
		t.Helper()
		d, err := s.Driver()
		expect.True(t, err == nil && d != nil && opened == want, d, err, "it was opened", opened, "times, want", want)
	}
	ask(1)
	ask(1)
	now = now.Add(maxSession)
	ask(2)
	s.Failed()
	ask(3)
	absent = true
	s.Failed()
	_, err := s.Driver()
	expect.True(t, errors.Is(err, ErrNoDriver) && s.driver == nil, err)
	absent = false
	ask(4)
	s.Close()
	s.Close()
	ask(5)
}
