package pace

import (
	"testing"
	"time"
)

// After a quiet moment a few are at once; where there is always one more, each waits for its turn.
func TestPace(t *testing.T) {
	p := Pace{Every: 100 * time.Millisecond, Most: 3}
	begin := time.Unix(1e9, 0)
	now := begin
	for n, want := range []time.Duration{0, 0, 0, 100, 200, 300} {
		if now = p.Next(now); now.Sub(begin) != want*time.Millisecond {
			t.Errorf("number %d is after %v", n, now.Sub(begin))
		}
	}
	for range 1000 {
		now = p.Next(now)
	}
	if took := now.Sub(begin); took != 1003*100*time.Millisecond {
		t.Errorf("all of them are after %v", took)
	}
	now = now.Add(150 * time.Millisecond) // one is earned, and half of another
	if first := p.Next(now); first != now {
		t.Errorf("the first is after %v", first.Sub(now))
	}
	if second := p.Next(now); second.Sub(now) != 50*time.Millisecond {
		t.Errorf("the second is after %v", second.Sub(now))
	}
}
