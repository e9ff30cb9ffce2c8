package fleet

import (
	"crypto/rand"
	"strconv"
	"strings"
	"sync"
)

// Feed tells goroutines (its followers) that some data has a new version. It holds only the version
// number. A slow follower delays no other goroutine, and nothing is queued for it: when it is
// ready, it reads the current version and skips the versions between. A Feed is safe for concurrent
// use.
type Feed struct {
	mark string // this Feed's prefix of tokens

	mu     sync.Mutex
	number uint64        // guarded by mu
	next   chan struct{} // closed at the next version; guarded by mu
}

// NewFeed returns a Feed at version 0.
func NewFeed() *Feed { return &Feed{mark: rand.Text()[:10] + "-", next: make(chan struct{})} }

// Advance starts the next version, and wakes all followers that wait for it.
func (f *Feed) Advance() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.number++
	close(f.next)
	f.next = make(chan struct{})
	return f.number
}

// Latest returns the current version, and a channel that is closed at the next one. A follower must
// call it before it reads the data, so that it misses no change.
func (f *Feed) Latest() (uint64, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.number, f.next
}

// Token returns a version as text, for a client that may reconnect, perhaps to another process.
func (f *Feed) Token(number uint64) string { return f.mark + strconv.FormatUint(number, 10) }

// Parse returns the version of a token, or 0 if another Feed made the token.
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

// Merge returns all items of a new version: serials has a number for each, in order, and fresh the items whose
// numbers are not in have, in the same order. next has them by their numbers, for the version after it. ok is
// false if there are too few or too many fresh items.
func Merge[T any](have map[uint64]T, serials []uint64, fresh []T) (all []T, next map[uint64]T, ok bool) {
	all, next = make([]T, len(serials)), make(map[uint64]T, len(serials))
	for i, serial := range serials {
		item, known := have[serial]
		if !known {
			if len(fresh) == 0 {
				return nil, nil, false
			}
			item, fresh = fresh[0], fresh[1:]
		}
		all[i], next[serial] = item, item
	}
	return all, next, len(fresh) == 0
}
