package pace

import "time"

// Backoff is how long to pause between tries of something that waits by itself, unless others see to it
// that it does not. It is not for use by several goroutines at once.
type Backoff struct {
	First, Last time.Duration
	pause       time.Duration
}

// After returns the pause after a try that took so long: twice the one before, and First again after one
// that did wait.
func (b *Backoff) After(took time.Duration) time.Duration {
	if b.pause == 0 || took >= b.pause {
		b.pause = b.First
	} else {
		b.pause = min(2*b.pause, b.Last)
	}
	return b.pause
}
