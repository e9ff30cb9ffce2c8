package job

import "time"

// Backoff is the pause between calls that usually block in the kernel, but that a user can make
// return at once. It is not safe for concurrent use.
type Backoff struct {
	First, Last time.Duration
	pause       time.Duration
}

// After returns the pause after a call that took the given time: First after a call that blocked,
// and otherwise twice the previous pause, up to Last.
func (b *Backoff) After(took time.Duration) time.Duration {
	if b.pause == 0 || took >= b.pause {
		b.pause = b.First
	} else {
		b.pause = min(2*b.pause, b.Last)
	}
	return b.pause
}
