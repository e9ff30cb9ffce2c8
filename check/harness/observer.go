package harness

import (
	"errors"
	"testing"

	"ration/check/observer"
)

// Observer checks a region without pause while a test runs.
type Observer struct {
	*observer.Loop
	checker *observer.Checker
}

// Observe starts to check the first devices of an existing region, each of which may
// grant at most ceiling bytes.
func Observe(t testing.TB, path string, devices int, ceiling uint64) *Observer {
	t.Helper()
	checker, err := observer.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	loop := observer.Start(0, func() (err error) {
		for d := range devices {
			err = errors.Join(err, checker.Check(d, ceiling))
		}
		return err
	})
	t.Cleanup(func() { _, _ = loop.Stop(), checker.Close() })
	return &Observer{loop, checker}
}

// MustHold ends the checks, and fails the test if one of them failed or none was made.
func (o *Observer) MustHold(t testing.TB) {
	t.Helper()
	if err := o.Stop(); err != nil {
		t.Error(err)
	}
	t.Logf("observer: %d readings, %d holdings read by best effort", o.checker.Readings, o.checker.BestEffort)
	if o.checker.Readings == 0 {
		t.Error("the observer took no reading")
	}
}
