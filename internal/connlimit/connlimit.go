// Package connlimit bounds how many connections clients have at once, so that no user keeps others
// from being served.
//
// At a Unix socket the kernel says which user a client is: Listen bounds the connections of each user
// and of all. At a TCP port clients are anonymous: Evicting closes the connection that was idle longest.
package connlimit

import (
	"errors"
	"net"
	"sync"

	"golang.org/x/sys/unix"

	"ration/internal/proc"
)

// Limiter bounds the connections of each user and of all users. Several listeners may share one.
// The UIDs of one range of /etc/subuid count as one user (proc.Account).
type Limiter struct {
	perUser, total int
	account        func(uid int) int // proc.Account, but in tests

	mu    sync.Mutex
	users map[int]*User // under mu: users that have connections, by account
	open  int           // under mu: connections of all users
}

// New returns a limiter of so many connections for each user, and so many in all. The bound of all
// applies to a user's second connection and those after it: a user without one is always admitted.
// It does not apply to root.
func New(perUser, total int) *Limiter {
	return &Limiter{perUser: perUser, total: total, account: proc.Account, users: map[int]*User{}}
}

// User is a user that has connections.
type User struct {
	limiter *Limiter
	account int
	conns   int // under the limiter's mu
	turn    sync.Mutex
}

// Do calls work, for one connection of the user at a time. Thus many requests of one user neither
// delay other users' nor hold many answers in memory. It works for a nil User, too.
func (u *User) Do(work func()) {
	if u != nil {
		u.turn.Lock()
		defer u.turn.Unlock()
	}
	work()
}

// admit counts a connection of a user; nil if it is one too many. release ends it.
func (l *Limiter) admit(uid int) *User {
	account := l.account(uid)
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.users[account]
	switch {
	case u == nil:
		u = &User{limiter: l, account: account}
		l.users[account] = u
	case u.conns >= l.perUser || l.open >= l.total && account != 0:
		return nil
	}
	u.conns++
	l.open++
	return u
}

func (u *User) release() {
	l := u.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if u.conns--; u.conns == 0 {
		delete(l.users, u.account)
	}
}

// Conn is a connection of a known user.
type Conn struct {
	net.Conn
	UID    int
	User   *User
	closed sync.Once
}

// Close closes the connection, and takes it off the user's.
func (c *Conn) Close() error {
	c.closed.Do(c.User.release)
	return c.Conn.Close()
}

type listener struct {
	net.Listener
	limiter *Limiter
}

// Listen returns a listener at a Unix socket which accepts connections within a limiter's bounds, as
// *Conn. It closes the others.
func Listen(socket net.Listener, limiter *Limiter) net.Listener { return listener{socket, limiter} }

func (l listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if uid, err := PeerUID(c); err == nil {
			if u := l.limiter.admit(uid); u != nil {
				return &Conn{Conn: c, UID: uid, User: u}, nil
			}
		}
		_ = c.Close()
	}
}

// PeerUID returns the user at the other end of a Unix socket, as the kernel recorded it when that end
// connected or listened.
func PeerUID(c net.Conn) (uid int, err error) {
	u, is := c.(*net.UnixConn)
	if !is {
		return 0, errors.New("reading the user of a peer: not a Unix socket")
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	failed := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(failed, err); err != nil {
		return 0, err
	}
	return int(cred.Uid), nil
}
