package job

import (
	"testing"
	"time"

	"ration/check/expect"
)

// Calls that return at once become rarer, down to a bound, until one waits.
func TestBackoff(t *testing.T) {
	b := Backoff{First: time.Millisecond, Last: 5 * time.Millisecond}
	for n, step := range []struct{ took, want time.Duration }{{0, 1}, {0, 2}, {1, 4}, {3, 5}, {4, 5}, {5, 1}, {0, 2}} {
		expect.Equal(t, b.After(step.took*time.Millisecond), step.want*time.Millisecond, "after try", n)
	}
}
