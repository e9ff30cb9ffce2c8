package connlimit

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"ration/check/expect"
)

// A user has a bounded number of connections. However many connections there are in all, a user
// without one is admitted, and root within its own bound.
func TestLimiter(t *testing.T) {
	const perUser, total = 4, 16
	l := New(perUser, total)
	l.account = func(uid int) int { return uid }
	var first []*User
	for user := range 2 * total / perUser {
		for n := range perUser + 1 {
			u := l.admit(1000 + user)
			want := n == 0 || n < perUser && user < total/perUser
			expect.Must(t, (u != nil) == want, "connection", n, "of user", user, "admitted", u != nil)
			if user == 0 && u != nil {
				first = append(first, u)
			}
		}
	}
	expect.True(t, l.admit(7) != nil && l.admit(7) == nil && l.admit(0) != nil && l.admit(0) != nil, "users are", l.users)
	before := l.open
	for _, u := range first {
		u.release()
	}
	expect.True(t, l.users[1000].conns == 0 && l.open == before-perUser, "user 1000 has", l.users[1000].conns, "of", l.open, "connections")
}

// A connection counts for the account of the user at its other end, until it is closed.
func TestListen(t *testing.T) {
	socket, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	expect.OK(t, err)
	defer socket.Close()
	limiter := New(1, 1)
	limiter.account = func(int) int { return -2 } // of a range of /etc/subuid
	l := Listen(socket, limiter)
	var accepted net.Conn
	for range 2 { // the second after the first was closed, twice
		c, err := net.Dial("unix", socket.Addr().String())
		expect.OK(t, err)
		defer c.Close()
		accepted, err = l.Accept()
		expect.OK(t, err)
		if c := accepted.(*Conn); c.UID != os.Getuid() || c.User != limiter.users[-2] || len(limiter.users) != 1 {
			t.Errorf("a connection of user %d, and these count: %v", c.UID, limiter.users)
		}
		expect.True(t, limiter.admit(5) == nil, "one connection too many was admitted")
		_, _ = accepted.Close(), accepted.Close()
		expect.True(t, limiter.open == 0 && limiter.users[-2].conns == 0, limiter.open, "are open, and these count", limiter.users)
	}
}

// Work for one user is done one at a time, and for another user meanwhile.
func TestDo(t *testing.T) {
	var one, other User
	done := false
	one.Do(func() {
		expect.True(t, !one.turn.TryLock(), "the user's next request is not delayed")
		other.Do(func() { done = true })
	})
	(*User)(nil).Do(func() {})
	expect.True(t, done, "the other user's work was not done")
	var all sync.WaitGroup
	var atOnce atomic.Int32
	for range 100 {
		all.Go(func() {
			one.Do(func() {
				n := atOnce.Add(1)
				expect.True(t, n <= 1, n, "requests of one user at once")
				runtime.Gosched()
				atOnce.Add(-1)
			})
		})
	}
	all.Wait()
}

// If all connections are protected, the next is refused and none is closed.
func TestEvictingProtected(t *testing.T) {
	l := NewEvicting(nil, 2)
	for range 2 {
		a, _ := net.Pipe()
		c := l.admit(a)
		l.protect(c)
		defer c.Close()
	}
	b, _ := net.Pipe()
	expect.True(t, l.admit(b) == nil, "one more was admitted")
	expect.True(t, l.open == 2 && len(l.unprotected) == 0, l.open, "connections", len(l.unprotected), "unprotected")
}
