package machine

import "sync"

// mostReads is how many reads of one user's folders may be in progress in this process.
const mostReads = 4

// readsOf counts the reads in progress by user. A program that calls Read again and again would otherwise have one more thread
// each time if a user's file system does not respond.
var readsOf = readCount{of: map[int]int{}}

type readCount struct {
	mu sync.Mutex
	of map[int]int // guarded by mu
}

func (r *readCount) enter(uid int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of[uid] >= mostReads {
		return false
	}
	r.of[uid]++
	return true
}

func (r *readCount) leave(uid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of[uid]--; r.of[uid] == 0 {
		delete(r.of, uid)
	}
}
