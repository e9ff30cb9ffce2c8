// Package feed numbers the versions of something that changes, and wakes those that wait for the next one.
package feed

import (
	"crypto/rand"
	"strconv"
	"strings"
	"sync"
)

// Feed is the version of something that changes. A slow follower holds up nobody and nothing is queued: when
// it comes back, it reads the version that there is then. Several goroutines may use a Feed.
type Feed struct {
	mark string // of this Feed in tokens

	mu     sync.Mutex
	number uint64        // under mu
	next   chan struct{} // under mu: closed when there is another version
}

// New returns a Feed of version 0.
func New() *Feed { return &Feed{mark: rand.Text()[:10] + "-", next: make(chan struct{})} }

// Advance makes the next version, and wakes all that wait for it.
func (f *Feed) Advance() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.number++
	close(f.next)
	f.next = make(chan struct{})
	return f.number
}

// Latest returns the version that there is, and a channel that is closed when there is another. A follower
// calls it before it reads what changes, so that it misses nothing.
func (f *Feed) Latest() (uint64, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.number, f.next
}

// Token returns a version as text for a client that may come back, perhaps to another process.
func (f *Feed) Token(number uint64) string { return f.mark + strconv.FormatUint(number, 10) }

// Parse returns the version of a token, or 0 for a token of another Feed.
func (f *Feed) Parse(token string) uint64 {
	digits, ours := strings.CutPrefix(token, f.mark)
	if !ours {
		return 0
	}
	number, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return 0
	}
	return number
}
