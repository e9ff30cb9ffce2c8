package machine

import (
	"slices"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/scan"
)

// A refusal by the policy stops being a finding by itself, although nothing else changes.
func TestDeniedAges(t *testing.T) {
	t.Setenv("RATION_DIR", t.TempDir())
	s := newScanner(scan.Options{})
	defer s.Close()
	s.base.Denied = []Denied{{Time: time.Now().Add(time.Second/2 - deniedRecent), UID: 1000, User: "ada", Text: "no room"}}
	found := func() bool {
		r, err := s.Scan(true)
		expect.Must(t, err == nil, err)
		return slices.ContainsFunc(r.Machine.Findings, func(f Finding) bool { return f.Kind == PolicyRefused })
	}
	expect.Must(t, found())
	for end := time.Now().Add(10 * time.Second); found(); time.Sleep(10 * time.Millisecond) {
		expect.Must(t, time.Now().Before(end), "it stays")
	}
	expect.True(t, s.deniedAges.IsZero(), s.deniedAges)
}
