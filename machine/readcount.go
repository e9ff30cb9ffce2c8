package machine

import (
	"sync"
	"time"
)

// mostLate is how many reads of one user's folders that have missed their deadline may be in progress in this process.
const mostLate = 4

// lateReads has them by user. A program that calls Read again and again would otherwise have one more thread each time if a
// user's file system does not respond.
var lateReads = struct {
	sync.Mutex
	of map[int]map[*userScan]bool // guarded by Mutex
}{of: map[int]map[*userScan]bool{}}

// refuseRead reports whether no read of this user can be started now. Then it does not answer, and is not waited for. The
// caller holds u.mu.
func (u *userScan) refuseRead() bool {
	lateReads.Lock()
	defer lateReads.Unlock()
	if !u.once || len(lateReads.of[u.uid]) < mostLate {
		return false
	}
	u.began = time.Time{}
	return true
}

// countLate counts a read that has missed its deadline, until countEnd. The caller holds u.mu.
func (u *userScan) countLate() {
	if !u.once || !u.unanswering || u.began.IsZero() {
		return
	}
	lateReads.Lock()
	defer lateReads.Unlock()
	if lateReads.of[u.uid] == nil {
		lateReads.of[u.uid] = map[*userScan]bool{}
	}
	lateReads.of[u.uid][u] = true
}

// countEnd is called when a scan has ended.
func (u *userScan) countEnd() {
	lateReads.Lock()
	defer lateReads.Unlock()
	if delete(lateReads.of[u.uid], u); len(lateReads.of[u.uid]) == 0 {
		delete(lateReads.of, u.uid)
	}
}
