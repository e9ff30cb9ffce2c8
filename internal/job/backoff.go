package job

import "time"

// Backoff is the pause between calls that usually wait in the kernel, and that a user can make return
// at once. One goroutine uses it.
type Backoff struct {
	First, Last time.Duration
	pause       time.Duration
}

// After returns the pause after a call that took so long: First after a call that waited, and otherwise
// twice the pause before, up to Last.
func (b *Backoff) After(took time.Duration) time.Duration {
	if b.pause == 0 || took >= b.pause {
		b.pause = b.First
	} else {
		b.pause = min(2*b.pause, b.Last)
	}
	return b.pause
}
