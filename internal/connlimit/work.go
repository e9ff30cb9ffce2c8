package connlimit

import (
	"time"

	"golang.org/x/time/rate"
)

// Each user may use one part in workShare of one processor's time, and workAhead of it at once after a quiet
// moment. A connection and a request cost at least requestCost each: the server's own work for them is not
// measured. Root has no bound.
const (
	workShare   = 10
	workAhead   = 200 * time.Millisecond
	requestCost = time.Millisecond
)

// maxUnsent bounds the bytes of a user's answers that are made and not sent yet. One answer may be longer.
const maxUnsent = 16 << 20

// newWork returns a limiter of processor time, in microseconds.
func newWork() *rate.Limiter {
	return rate.NewLimiter(rate.Limit(time.Second/workShare/time.Microsecond), int(workAhead/time.Microsecond))
}

// charge takes a cost off the user's processor time, and returns how long the user has to wait after that.
func (u *User) charge(cost time.Duration) time.Duration {
	if u == nil || u.work == nil || u.account == 0 {
		return 0
	}
	now := u.limiter.now()
	return u.work.ReserveN(now, int(min(cost, workAhead)/time.Microsecond)).DelayFrom(now)
}

// Begin waits until the user may make a request, and charges its least cost. Call it once for each request.
// A nil User is allowed.
func (u *User) Begin() { u.sleep(u.charge(requestCost)) }

// Do calls work, for one connection of the user at a time, and charges the time that it takes. So many
// requests of one user neither delay other users nor keep many answers in memory. A nil User is allowed.
func (u *User) Do(work func()) {
	if u == nil {
		work()
		return
	}
	u.turn.Lock()
	defer u.turn.Unlock()
	u.sleep(u.charge(0))
	began := time.Now()
	u.free = 0
	work()
	u.charge(time.Since(began) - u.free)
}

// Free calls work, a part of that of Do, and does not charge the time that it takes. A nil User is allowed.
func (u *User) Free(work func()) {
	began := time.Now()
	work()
	if u != nil {
		u.free += time.Since(began)
	}
}

func (u *User) sleep(wait time.Duration) {
	if wait > 0 {
		u.limiter.sleep(wait)
	}
}

// Hold waits until an answer of a size may be kept in memory. Call the function that it returns when the
// answer is sent, or cannot be. A nil User is allowed.
func (u *User) Hold(bytes int) (release func()) {
	if u == nil || u.limiter == nil {
		return func() {}
	}
	l := u.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	for u.unsent > 0 && u.unsent+bytes > maxUnsent {
		l.sent.Wait()
	}
	u.unsent += bytes
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		u.unsent -= bytes
		l.sent.Broadcast()
	}
}
