package connlimit

import (
	"context"
	"net"
	"net/http"
	"slices"
	"sync"
)

// Evicting is a listener with a bounded number of connections, at a port that every user can connect
// to. If there are too many, it closes the oldest unprotected connection: clients that send nothing, or
// have no token, cannot keep out a client that has one. A handler protects the connection of a
// request that it serves (Protect). A handler that serves everybody ends this with the first byte of
// its answer (Unprotect, UnprotectWriter), so that clients that do not read keep out nobody either.
type Evicting struct {
	net.Listener
	most int

	mu          sync.Mutex
	open        int             // under mu: connections
	unprotected []*evictingConn // under mu: the oldest first
}

// NewEvicting bounds the connections of a listener. The handlers of a server can protect them if it
// has had Attach.
func NewEvicting(l net.Listener, most int) *Evicting { return &Evicting{Listener: l, most: most} }

type evictingConn struct {
	net.Conn
	listener *Evicting
	closed   bool // under the listener's mu
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

// admit returns nil if all others are protected.
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

// remove takes a connection off the count, once. The caller holds mu.
func (l *Evicting) remove(c *evictingConn) {
	if !c.closed {
		c.closed = true
		l.open--
		l.protect(c)
	}
}

// protect takes a connection off the unprotected ones. The caller holds mu.
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

// Protect keeps the connection of a request from being closed for another.
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

// UnprotectWriter is an answer's writer that calls Unprotect before it writes.
type UnprotectWriter struct {
	http.ResponseWriter
	Request *http.Request
}

// Write writes a part of the answer.
func (w UnprotectWriter) Write(text []byte) (int, error) {
	Unprotect(w.Request)
	return w.ResponseWriter.Write(text)
}
