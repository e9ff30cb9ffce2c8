package connlimit

import (
	"sync"
	"time"
)

// Lines bounds how many lines a log gets because of one user, together with its subordinate users: most of
// them in a span of time. It counts the others.
type Lines struct {
	most int
	span time.Duration
	left func(owner string, n int) // writes how many lines were left out

	mu    sync.Mutex
	users map[int]*userLines // guarded by mu: by account
}

type userLines struct {
	owner   string
	since   time.Time
	written int
	left    int
}

// NewLines returns a bound for each user. left is called at the end of a span, with the name of a user for
// whom lines were left out.
func NewLines(most int, span time.Duration, left func(owner string, n int)) *Lines {
	return &Lines{most: most, span: span, left: left, users: map[int]*userLines{}}
}

// Allow reports whether one more line may be written because of an account (proc.Account), and counts it.
func (l *Lines) Allow(account int, owner string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flush(now)
	u := l.users[account]
	if u == nil {
		u = &userLines{owner: owner, since: now}
		l.users[account] = u
	}
	if u.written < l.most {
		u.written++
		return true
	}
	u.left++
	return false
}

// Flush ends the spans that are over.
func (l *Lines) Flush(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flush(now)
}

// Close ends all spans.
func (l *Lines) Close() { l.Flush(time.Unix(1<<40, 0)) }

func (l *Lines) flush(now time.Time) {
	for account, u := range l.users {
		if now.Sub(u.since) >= l.span {
			delete(l.users, account)
			if u.left > 0 {
				l.left(u.owner, u.left)
			}
		}
	}
}
