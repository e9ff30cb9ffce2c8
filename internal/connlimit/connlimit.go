// Package connlimit bounds what the clients of a server make it do, by user, so that no user can keep
// others from being served.
//
// At a Unix socket the kernel reports the client's user: Listen bounds the connections of each user and of
// all users, and User the processor time and the memory for a user's requests. At a TCP port the kernel reports
// the user of a client on this machine, and ListenTCP does the same. Other clients are anonymous: Evicting closes
// the oldest unprotected connection, and Streams bounds the connections that stay, by the user or the address
// that ClientOf finds. Lines bounds the lines of a log.
package connlimit

import (
	"errors"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"ration/internal/proc"
)

// Limiter bounds the connections of each user and of all users. Several listeners may share one.
// A user and the UIDs of that user's ranges in /etc/subuid count as one (proc.Account).
type Limiter struct {
	perUser, total int
	account        func(uid int) int // proc.Account, except in tests

	mu    sync.Mutex
	users map[int]*User // guarded by mu: users with connections, or with little time left, by account
	open  int           // guarded by mu: connections of all users
	sent  sync.Cond     // of mu: an answer was sent

	now   func() time.Time // as in package time, except in tests
	sleep func(time.Duration)
}

// New returns a limiter with a bound for each user and one for all. The bound for all does not
// apply to a user's first connection, so a user without a connection is always admitted. It does
// not apply to root.
func New(perUser, total int) *Limiter {
	l := &Limiter{perUser: perUser, total: total, account: proc.Account, users: map[int]*User{}, now: time.Now, sleep: time.Sleep}
	l.sent.L = &l.mu
	return l
}

// User is a user with connections.
type User struct {
	limiter *Limiter
	account int
	conns   int // guarded by the limiter's mu
	unsent  int // guarded by the limiter's mu: bytes of answers that are not sent yet
	turn    sync.Mutex
	free    time.Duration // guarded by turn: what Do does not charge
	work    *rate.Limiter // of processor time, see newWork
}

// admit counts a new connection of a user. It returns nil if that would be too many. release undoes
// it.
func (l *Limiter) admit(uid int) *User {
	account := l.account(uid)
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.users[account]
	switch {
	case u == nil:
		l.forget()
		u = &User{limiter: l, account: account, work: newWork()}
		l.users[account] = u
	case u.conns >= l.perUser || l.open >= l.total && account != 0 && u.conns > 0:
		return nil
	}
	if u.charge(requestCost) > maxDebt {
		return nil
	}
	u.conns++
	l.open++
	return u
}

// maxDebt is after how long a wait a user gets no further connection.
const maxDebt = 2 * time.Second

// forget drops users without connections whose processor time is as at the beginning. The caller holds mu.
func (l *Limiter) forget() {
	for account, u := range l.users {
		if u.conns == 0 && u.work.TokensAt(l.now()) >= float64(u.work.Burst()) {
			delete(l.users, account)
		}
	}
}

func (u *User) release() {
	l := u.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	u.conns--
}

// Conn is a connection of a known user.
type Conn struct {
	net.Conn
	UID    int
	PID    int // of the process that connected; 0 if it cannot be seen from here
	User   *User
	closed sync.Once
}

// Close closes the connection, and counts it down.
func (c *Conn) Close() error {
	c.closed.Do(c.User.release)
	return c.Conn.Close()
}

type listener struct {
	net.Listener
	limiter *Limiter
}

// Listen returns a listener that accepts connections of a Unix socket within the limiter's bounds,
// as *Conn. It closes all others.
func Listen(socket net.Listener, limiter *Limiter) net.Listener { return listener{socket, limiter} }

func (l listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if peer, err := peerOf(c); err == nil {
			if u := l.limiter.admit(int(peer.Uid)); u != nil {
				return &Conn{Conn: c, UID: int(peer.Uid), PID: int(peer.Pid), User: u}, nil
			}
		}
		_ = c.Close()
	}
}

// ListenTCP returns a listener for a port. It admits clients that are processes of this machine within the
// limiter's bounds, as *Conn, and all others as they are. It closes a connection whose client is gone.
func ListenTCP(socket net.Listener, limiter *Limiter) net.Listener {
	return tcpListener{socket, limiter}
}

type tcpListener struct {
	net.Listener
	limiter *Limiter
}

func (l tcpListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		uid, own, err := clientUser(c.RemoteAddr(), c.LocalAddr())
		switch {
		case errors.Is(err, errGone):
		case !own || err != nil: // without these bounds, where the kernel does not say whose a socket is
			return c, nil
		default:
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
	peer, err := peerOf(c)
	if err != nil {
		return 0, err
	}
	return int(peer.Uid), nil
}

func peerOf(c net.Conn) (peer *unix.Ucred, err error) {
	u, is := c.(*net.UnixConn)
	if !is {
		return nil, errors.New("reading the user of a peer: not a Unix socket")
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nil, err
	}
	failed := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return peer, errors.Join(failed, err)
}
