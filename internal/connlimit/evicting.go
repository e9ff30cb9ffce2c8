package connlimit

import (
	"context"
	"net"
	"net/http"
	"slices"
	"sync"
)

// Evicting is a listener with a bounded number of connections, for a port that every user can
// connect to. If there are too many, it closes the oldest unprotected connection. So clients that
// send nothing, or have no token, cannot keep out a client with a token. A handler protects the
// connection of a request that it serves (Protect). A handler that serves every user ends the
// protection with the first byte of its answer (Unprotect, UnprotectWriter), so that clients that
// do not read cannot keep out others.
type Evicting struct {
	net.Listener
	most int

	mu          sync.Mutex
	open        int             // guarded by mu: number of connections
	unprotected []*evictingConn // guarded by mu: oldest first
}

// NewEvicting bounds the connections of a listener. Handlers can protect connections only of a
// server that was passed to Attach.
func NewEvicting(l net.Listener, most int) *Evicting { return &Evicting{Listener: l, most: most} }

type evictingConn struct {
	net.Conn
	listener *Evicting
	closed   bool // guarded by the listener's mu
}

// Accept waits for a connection.
func (l *Evicting) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if admitted := l.admit(c); admitted != nil {
			return admitted, nil
		}
		_ = c.Close()
	}
}

// admit returns nil if all connections are protected.
func (l *Evicting) admit(c net.Conn) *evictingConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= l.most {
		if len(l.unprotected) == 0 {
			return nil
		}
		oldest := l.unprotected[0]
		l.remove(oldest)
		_ = oldest.Conn.Close()
	}
	admitted := &evictingConn{Conn: c, listener: l}
	l.unprotected = append(l.unprotected, admitted)
	l.open++
	return admitted
}

// remove stops counting a connection, once. The caller holds mu.
func (l *Evicting) remove(c *evictingConn) {
	if !c.closed {
		c.closed = true
		l.open--
		l.protect(c)
	}
}

// protect removes a connection from the unprotected ones. The caller holds mu.
func (l *Evicting) protect(c *evictingConn) {
	l.unprotected = slices.DeleteFunc(l.unprotected, func(other *evictingConn) bool { return other == c })
}

func (c *evictingConn) Close() error {
	c.listener.mu.Lock()
	c.listener.remove(c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}

type connKey struct{}

// Attach lets the handlers of a server protect its connections.
func Attach(s *http.Server) {
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) }
}

// Protect prevents that the connection of a request is closed in favour of another.
func Protect(r *http.Request) { setProtected(r, true) }

// Unprotect makes the connection of a request the newest unprotected one.
func Unprotect(r *http.Request) { setProtected(r, false) }

func setProtected(r *http.Request, protected bool) {
	c, is := r.Context().Value(connKey{}).(*evictingConn)
	if !is {
		return
	}
	l := c.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.protect(c); !protected && !c.closed {
		l.unprotected = append(l.unprotected, c)
	}
}

// UserOf returns the user of a request at a port, if ListenTCP has found one; nil otherwise.
func UserOf(r *http.Request) *User {
	if c, is := r.Context().Value(connKey{}).(*evictingConn); is {
		if client, is := c.Conn.(*Conn); is {
			return client.User
		}
	}
	return nil
}

// UnprotectWriter writes an answer, and calls Unprotect before the first write.
type UnprotectWriter struct {
	http.ResponseWriter
	Request *http.Request
}

// Write writes a part of the answer.
func (w UnprotectWriter) Write(text []byte) (int, error) {
	Unprotect(w.Request)
	return w.ResponseWriter.Write(text)
}
