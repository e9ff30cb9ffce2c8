package job

import (
	"testing"
	"time"
)

// Calls that return at once become rarer, down to a bound, until one waits.
func TestBackoff(t *testing.T) {
	b := Backoff{First: time.Millisecond, Last: 5 * time.Millisecond}
	for n, step := range []struct{ took, want time.Duration }{{0, 1}, {0, 2}, {1, 4}, {3, 5}, {4, 5}, {5, 1}, {0, 2}} {
		if got := b.After(step.took * time.Millisecond); got != step.want*time.Millisecond {
			t.Errorf("after try %d: %v", n, got)
		}
	}
}
