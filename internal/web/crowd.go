package web

import (
	"context"
	"net"
	"net/http"
	"slices"
	"sync"
)

// Crowd is a listener with a bounded number of connections, for a port that every user of the
// machine can connect to. Where there are too many, the one goes that has been there longest
// without a request that was let in: connections that ask for nothing, or have no token, do not
// keep out those who have one. A page tells it whom it lets in (Attend, LetIn). One that lets in
// everybody lets them go when their answer is ready (LetGo): who does not read it keeps out nobody either.
type Crowd struct {
	net.Listener
	most int

	mu        sync.Mutex
	total     int          // under mu: connections that are open
	strangers []*crowdConn // under mu: those of them that were not let in, the oldest first
}

// NewCrowd bounds the connections of a listener.
func NewCrowd(l net.Listener, most int) *Crowd {
	return &Crowd{Listener: l, most: most}
}

type crowdConn struct {
	net.Conn
	crowd *Crowd
	gone  bool // under the crowd's mu
}

// Accept waits for a connection.
func (l *Crowd) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if here := l.admit(c); here != nil {
			return here, nil
		}
		_ = c.Close()
	}
}

// admit returns nil where all others were let in.
func (l *Crowd) admit(c net.Conn) *crowdConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.total >= l.most {
		if len(l.strangers) == 0 {
			return nil
		}
		oldest := l.strangers[0]
		l.forget(oldest)
		_ = oldest.Conn.Close()
	}
	here := &crowdConn{Conn: c, crowd: l}
	l.strangers = append(l.strangers, here)
	l.total++
	return here
}

// forget takes a connection off the count, once. mu is held.
func (l *Crowd) forget(c *crowdConn) {
	if c.gone {
		return
	}
	c.gone = true
	l.total--
	l.introduce(c)
}

// introduce takes a connection off the strangers. mu is held.
func (l *Crowd) introduce(c *crowdConn) {
	l.strangers = slices.DeleteFunc(l.strangers, func(s *crowdConn) bool { return s == c })
}

func (c *crowdConn) Close() error {
	c.crowd.mu.Lock()
	c.crowd.forget(c)
	c.crowd.mu.Unlock()
	return c.Conn.Close()
}

type crowdKey struct{}

// Attend lets the handlers of a server, whose listener is a Crowd, tell it whom they let in.
func Attend(s *http.Server) {
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, crowdKey{}, c) }
}

// LetIn marks the connection of a request as one that is no stranger's.
func LetIn(r *http.Request) {
	c, is := r.Context().Value(crowdKey{}).(*crowdConn)
	if !is {
		return
	}
	c.crowd.mu.Lock()
	defer c.crowd.mu.Unlock()
	c.crowd.introduce(c)
}

// LetGo makes the connection of a request that was let in a stranger's again, the one that came last.
func LetGo(r *http.Request) {
	c, is := r.Context().Value(crowdKey{}).(*crowdConn)
	if !is {
		return
	}
	c.crowd.mu.Lock()
	defer c.crowd.mu.Unlock()
	if c.crowd.introduce(c); !c.gone {
		c.crowd.strangers = append(c.crowd.strangers, c)
	}
}

// LetGoWriter is the writer of an answer with whose first bytes its reader is let go.
type LetGoWriter struct {
	http.ResponseWriter
	Request *http.Request
}

// Write writes a part of the answer.
func (w LetGoWriter) Write(text []byte) (int, error) {
	LetGo(w.Request)
	return w.ResponseWriter.Write(text)
}
